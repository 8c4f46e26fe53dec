"use strict";
// What the page does once it is there. Without it everything but charts, logs and tables of tasks is shown.
(() => {
  const all = (selector, root = document) => [...root.querySelectorAll(selector)];
  const kept = (id) => JSON.parse(document.getElementById(id).textContent);
  const make = (name, attributes = {}, ...children) => {
    const element = document.createElement(name);
    for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
    element.append(...children);
    return element;
  };
  const place = "upshift " + document.body.dataset.run;
  const memory = {
    get(store, key) { try { return JSON.parse(store().getItem(key)); } catch { return null; } },
    set(store, key, value) { try { store().setItem(key, JSON.stringify(value)); } catch { /* not allowed here */ } },
  };
  const session = () => window.sessionStorage;
  const local = () => window.localStorage;
  const announcer = make("div", { class: "hidden", "aria-live": "polite" });
  document.body.append(announcer);

  // Numbers, as the rest of the page writes them.

  const figures = (value, count) => (Math.abs(value) >= 10 ** count - 0.5 && Math.abs(value) < 1e9
    ? Math.round(value).toLocaleString("en") : String(Number(value.toPrecision(count))));
  const size = (value) => {
    const units = ["B", "KB", "MB", "GB", "TB", "PB"];
    let unit = 0;
    while (Math.abs(value) >= 999.5 && unit < units.length - 1) { value /= 1000; unit += 1; }
    return (unit && Math.abs(value) < 99.95 ? figures(value, 3) : value.toFixed(0)) + " " + units[unit];
  };
  const clock = (seconds) => {
    if (seconds < 60) return figures(seconds, 3) + " s";
    const whole = Math.round(seconds), two = (number) => String(number).padStart(2, "0");
    const hours = Math.floor(whole / 3600), minutes = Math.floor(whole / 60) % 60;
    return hours ? `${hours}:${two(minutes)}:${two(whole % 60)}` : `${minutes}:${two(whole % 60)}`;
  };
  const took = (seconds) => (seconds < 0.9995 ? `${(seconds * 1000).toFixed(0)} ms` : clock(seconds));
  const amount = (value, unit) => {
    if (unit === "bytes") return size(value);
    if (unit === "bytes/s") return size(value) + "/s";
    if (unit === "s") return clock(value);
    return unit ? `${figures(value, 3)} ${unit}` : figures(value, 4);
  };
  const roundUp = (value) => {
    const power = 10 ** Math.floor(Math.log10(value));
    return [1, 2, 5, 10].map((step) => step * power).find((step) => step >= value * (1 - 1e-9));
  };
  const TIMES = [1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900, 1800, 3600, 7200, 10800, 21600, 43200, 86400];
  const ticks = (low, high, most, time) => {
    const least = (high - low) / most;
    const step = time && least >= 1 ? TIMES.find((s) => s >= least) || 86400 * roundUp(least / 86400) : roundUp(least);
    const found = [];
    for (let number = Math.ceil(low / step - 1e-9); number <= high / step + 1e-9; number += 1) found.push(number * step);
    return found;
  };

  // Charts.

  const pieces = (path) => {
    // "M x y l dx dy …", as the report writes it.
    const found = [];
    const tokens = (path && path.getAttribute("d").match(/[Mlz]|-?\d+/g)) || [];
    let x = 0, y = 0;
    for (let at = 0; at < tokens.length;) {
      if (tokens[at] === "M") {
        x = +tokens[at + 1]; y = +tokens[at + 2]; found.push([[x, y]]); at += 3;
      } else if (tokens[at] === "l" || tokens[at] === "z") {
        at += 1;
      } else {
        x += +tokens[at]; y += +tokens[at + 1]; found[found.length - 1].push([x, y]); at += 2;
      }
    }
    return found;
  };
  class Line {
    constructor(group) {
      this.group = group;
      this.label = group.dataset.label;
    }
    get points() {
      if (!this.known) {
        const bands = pieces(group_path(this.group, ".band"));
        this.known = pieces(group_path(this.group, ".line")).flatMap((piece, number) => piece.map(([x, y], at) => {
          const band = bands[number], half = band ? band.length / 2 : 0;
          return at < half ? { x, y, high: band[at][1], low: band[band.length - 1 - at][1] } : { x, y, high: y, low: y };
        }));
      }
      return this.known;
    }
    get shown() { return this.group.style.display !== "none"; }
    near(x) {
      let low = 0, high = this.points.length - 1;
      while (low < high) {
        const middle = (low + high) >> 1;
        if (this.points[middle].x < x) low = middle + 1; else high = middle;
      }
      const before = this.points[low - 1], here = this.points[low];
      return before && x - before.x < here.x - x ? low - 1 : low;
    }
  }
  const group_path = (group, selector) => group.querySelector(selector);

  class Chart {
    constructor(plot, scope) {
      this.plot = plot;
      this.scope = scope;
      [this.left, this.right] = plot.dataset.x.split(" ").map(Number);
      [this.bottom, this.top] = plot.dataset.y.split(" ").map(Number);
      this.grid = Number(plot.dataset.grid);
      this.curves = plot.querySelector(".curves");
      this.lines = all("g", this.curves).map((group) => new Line(group));
      this.whole = [0, this.grid];
      this.view = this.whole;
      this.kind = [plot.dataset.across, this.left, this.right].join();
      plot.addEventListener("pointermove", (event) => this.point(event));
      plot.addEventListener("pointerleave", () => scope.clear());
      plot.addEventListener("pointerdown", (event) => this.grab(event));
      plot.addEventListener("pointerup", (event) => this.release(event));
      plot.addEventListener("pointercancel", () => this.drop());
      plot.addEventListener("dblclick", () => scope.look(this, this.whole));
      plot.addEventListener("keydown", (event) => this.key(event));
      plot.addEventListener("blur", () => scope.clear());
      for (const button of all(".key", plot.parentElement)) {
        button.addEventListener("click", () => {
          const on = button.getAttribute("aria-pressed") !== "true";
          button.setAttribute("aria-pressed", on);
          this.lines[button.dataset.line].group.style.display = on ? "" : "none";
        });
      }
    }
    share(x) { return (x - this.view[0]) / (this.view[1] - this.view[0]); }
    at(event) {
      const box = this.plot.getBoundingClientRect();
      const share = Math.min(Math.max((event.clientX - box.left) / box.width, 0), 1);
      return this.view[0] + share * (this.view[1] - this.view[0]);
    }
    across(x) { return this.left + (x / this.grid) * (this.right - this.left); }
    value(y) { return this.top - (y / this.grid) * (this.top - this.bottom); }
    mark(x) {
      const value = this.across(x), { across } = this.plot.dataset;
      if (across === "s") return clock(value);
      const decimals = Math.floor(-Math.log10((5 * (this.right - this.left)) / this.grid)); // what the grid can tell
      return `${across} ${Number(value.toFixed(Math.min(Math.max(decimals, 0), 9))).toLocaleString("en", { maximumFractionDigits: 9 })}`;
    }
    point(event) {
      const x = this.at(event);
      this.scope.show(this, x);
      if (this.from !== undefined) {
        const [one, other] = [this.share(this.from), this.share(x)].sort((a, b) => a - b);
        this.picked.style.left = `${100 * one}%`;
        this.picked.style.right = `${100 - 100 * other}%`;
      }
    }
    grab(event) {
      if (event.button || event.pointerType === "touch" || event.target.closest("button")) return;
      this.drop();
      this.from = this.at(event);
      this.picked = make("div", { class: "pick", style: "left:0;right:100%" });
      this.plot.append(this.picked);
      this.plot.setPointerCapture(event.pointerId);
    }
    release(event) {
      if (this.from === undefined) return;
      const [one, other] = [this.from, this.at(event)].sort((a, b) => a - b);
      this.drop();
      if (this.share(other) - this.share(one) > 0.01) this.scope.look(this, [one, other]);
    }
    drop() {
      if (this.picked) this.picked.remove();
      this.from = this.picked = undefined;
    }
    key(event) {
      const line = this.lines.find((each) => each.shown && each.points.length);
      if (!line || event.ctrlKey || event.metaKey || event.altKey) return;
      const now = this.here === undefined ? line.near(this.view[0]) - 1 : line.near(this.here);
      const last = line.points.length - 1, stride = event.shiftKey ? 10 : 1;
      const next = { ArrowLeft: now - stride, ArrowRight: now + stride, Home: 0, End: last }[event.key];
      if (next !== undefined) {
        const { x } = line.points[Math.min(Math.max(next, 0), last)];
        if (x < this.view[0] || x > this.view[1]) {
          const half = (this.view[1] - this.view[0]) / 2, middle = Math.min(Math.max(x, half), this.grid - half);
          this.scope.look(this, [middle - half, middle + half]);
        }
        this.scope.show(this, x);
        announcer.textContent = this.told(x);
      } else if (event.key === "+" || event.key === "=" || event.key === "-") {
        const factor = event.key === "-" ? 1 : 0.25, middle = this.here ?? (this.view[0] + this.view[1]) / 2;
        const half = Math.min((this.view[1] - this.view[0]) * factor, this.grid / 2);
        const from = Math.min(Math.max(middle - half, 0), this.grid - 2 * half);
        this.scope.look(this, [from, from + 2 * half]);
      } else if (event.key === "0" || event.key === "Escape") {
        this.scope.look(this, this.whole);
        this.scope.clear();
      } else {
        return;
      }
      event.preventDefault();
    }
    values(x) {
      return this.lines.filter((line) => line.shown && line.points.length).map((line) => {
        const found = line.points[line.near(x)];
        const unit = this.plot.dataset.unit;
        let told = amount(this.value(found.y), unit);
        if (found.low !== found.high) told += ` (${amount(this.value(found.low), unit)} – ${amount(this.value(found.high), unit)})`;
        return { line, found, told };
      });
    }
    told(x) {
      const values = this.values(x);
      const where = values.length ? this.mark(values[0].found.x) : "";
      return [where, ...values.map(({ line, told }) => `${line.label} ${told}`.trim())].join(", ");
    }
    cross(x) {
      this.clear();
      this.here = x;
      this.extra = [make("div", { class: "cross", style: `left:${100 * this.share(x)}%` })];
      for (const { line, found } of this.values(x)) {
        if (this.share(found.x) < 0 || this.share(found.x) > 1) continue;
        const style = `left:${100 * this.share(found.x)}%;top:${(100 * found.y) / this.grid}%`;
        this.extra.push(make("div", { class: "dot " + line.group.getAttribute("class"), style }));
      }
      this.plot.append(...this.extra);
    }
    tip(x) {
      const values = this.values(x);
      if (!values.length) return;
      const box = make("div", { class: "tip" }, make("b", {}, this.mark(values[0].found.x)));
      for (const { line, told } of values) {
        const label = line.label ? [make("span", {}, line.label)] : [];
        box.append(make("div", { class: line.group.getAttribute("class") }, make("i"), ...label, make("span", {}, told)));
      }
      box.style[this.share(x) > 0.5 ? "right" : "left"] = `calc(${100 * (this.share(x) > 0.5 ? 1 - this.share(x) : this.share(x))}% + 10px)`;
      this.extra.push(box);
      this.plot.append(box);
    }
    clear() {
      for (const element of this.extra || []) element.remove();
      this.extra = [];
      this.here = undefined;
    }
    look(view) {
      this.view = view;
      this.curves.setAttribute("viewBox", `${view[0]} 0 ${view[1] - view[0]} ${this.grid}`);
      const time = this.plot.dataset.across === "s";
      const marks = this.plot.querySelector(".xs");
      marks.replaceChildren(...ticks(this.across(view[0]), this.across(view[1]), 6, time).map((value, number) => {
        const text = document.createElementNS("http://www.w3.org/2000/svg", "text");
        const x = ((value - this.left) / (this.right - this.left)) * this.grid;
        text.setAttribute("x", `${100 * this.share(x)}%`);
        text.setAttribute("y", "100%");
        text.setAttribute("class", "across");
        text.textContent = time ? clock(value) : `${number ? "" : this.plot.dataset.across + " "}${amount(value, "")}`;
        return text;
      }));
      const whole = this.plot.querySelector(".whole");
      if (whole) whole.remove();
      if (view[1] - view[0] < this.grid) {
        const button = make("button", { type: "button", class: "whole" }, "Show all");
        button.addEventListener("click", () => { this.scope.look(this, this.whole); this.plot.focus(); });
        this.plot.append(button);
      }
    }
  }

  // Charts of the same time move together.
  class Scope {
    constructor(root) { this.charts = all(".plot[data-x]", root).map((plot) => new Chart(plot, this)); }
    like(chart) { return this.charts.filter((other) => other.kind === chart.kind && other.plot.isConnected); }
    show(chart, x) {
      this.clear();
      for (const other of this.like(chart)) other.cross(x);
      chart.tip(x);
    }
    clear() { for (const chart of this.charts) chart.clear(); }
    look(chart, view) {
      this.clear();
      for (const other of this.like(chart)) other.look(view);
    }
  }

  // The table of a step's tasks: only the rows in view are elements.

  const ROW = 28;
  class Tasks {
    constructor(box) {
      this.box = box;
      this.data = kept(box.dataset.tasks);
      const { texts, name, status, started, took: seconds, cpu, memory: peak, attempts, note } = this.data;
      const number = (values, words) => (i) => (values[i] === null ? "" : words(values[i]));
      this.columns = [
        ["task", (i) => texts[name[i]], (i) => i, "6rem"],
        ["status", (i) => texts[status[i]], (i) => texts[status[i]], "6.5rem"],
        ["started", number(started, clock), (i) => started[i], "6rem"],
        ["took", number(seconds, took), (i) => seconds[i], "6rem"],
        ["CPU, mean", number(cpu, String), (i) => cpu[i], "6.5rem"],
        ["memory, peak", number(peak, size), (i) => peak[i], "7.5rem"],
        ["attempts", number(attempts, String), (i) => attempts[i], "6rem"],
        ["why", (i) => texts[note[i]], (i) => texts[note[i]], "auto"],
      ];
      this.sort = [0, 1];
      this.build();
      this.choose();
    }
    build() {
      const { texts, status } = this.data;
      const counts = new Map();
      for (const each of status) counts.set(texts[each], (counts.get(texts[each]) || 0) + 1);
      this.filter = make("select", { "aria-label": "Status" }, make("option", { value: "" }, "all"));
      for (const [word, count] of counts) this.filter.append(make("option", { value: word }, `${word} (${count})`));
      this.search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search tasks" });
      this.told = make("span", { class: "quiet", role: "status" });
      this.filter.addEventListener("change", () => this.choose());
      this.search.addEventListener("input", () => this.choose());
      this.heads = this.columns.map(([title, , , width], column) => {
        const button = make("button", { type: "button" }, title);
        button.addEventListener("click", () => {
          this.sort = [column, this.sort[0] === column ? -this.sort[1] : 1];
          this.choose();
        });
        const narrow = column > 1 && column < 7 ? { class: "number" } : {};
        return make("th", { scope: "col", style: `width:${width}`, ...narrow }, button);
      });
      this.body = make("tbody");
      this.table = make("table", {}, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
      this.window = make("div", { class: "window", tabindex: 0, role: "region", "aria-label": "Tasks of " + this.box.dataset.step }, this.table);
      this.window.addEventListener("scroll", () => this.draw());
      this.chosen = make("div", { class: "chosen", role: "status" });
      this.box.append(make("div", { class: "tools" }, this.filter, this.search, this.told), this.window, this.chosen);
    }
    choose() {
      const { texts, status, name, note } = this.data;
      const word = this.filter.value, search = this.search.value.toLowerCase();
      const [column, direction] = this.sort, key = this.columns[column][2];
      this.rows = status.map((_, i) => i).filter((i) => (!word || texts[status[i]] === word)
        && (!search || `${texts[name[i]]} ${texts[note[i]]}`.toLowerCase().includes(search)));
      this.rows.sort((a, b) => {
        const one = key(a), other = key(b);
        if (one === other) return a - b;
        if (one === null) return 1;
        if (other === null) return -1;
        return (one < other ? -1 : 1) * direction;
      });
      this.heads.forEach((head, number) => head.setAttribute("aria-sort", number !== column ? "none" : direction > 0 ? "ascending" : "descending"));
      this.told.textContent = `${this.rows.length.toLocaleString("en")} of ${status.length.toLocaleString("en")} tasks`;
      this.table.setAttribute("aria-rowcount", this.rows.length + 1);
      this.first = undefined;
      this.window.scrollTop = 0;
      this.draw();
    }
    draw() {
      const first = Math.max(0, Math.floor(this.window.scrollTop / ROW) - 6), last = Math.min(this.rows.length, first + 30);
      if (first === this.first) return;
      this.first = first;
      const focused = document.activeElement && document.activeElement.dataset.task;
      const space = (rows) => {
        const cell = make("td", { colspan: this.columns.length, style: `height:${rows * ROW}px` });
        return make("tr", { class: "space", "aria-hidden": "true" }, cell);
      };
      const shown = this.rows.slice(first, last).map((i, at) => this.row(i, first + at));
      this.body.replaceChildren(space(first), ...shown, space(this.rows.length - last));
      if (focused !== undefined) {
        const again = this.body.querySelector(`[data-task="${focused}"]`);
        if (again) again.focus({ preventScroll: true });
      }
    }
    row(i, place) {
      const cells = this.columns.map(([, text], column) => {
        const cell = make("td", column > 1 && column < 7 ? { class: "number" } : {});
        if (column === 0) {
          const button = make("button", { type: "button", "data-task": i }, make("bdi", {}, text(i)));
          button.addEventListener("click", () => this.open(i));
          cell.append(button);
        } else if (column === 1) {
          cell.append(make("span", { class: "state " + text(i) }, text(i)));
        } else {
          cell.textContent = text(i);
          if (column === 7) cell.title = text(i);
        }
        return cell;
      });
      return make("tr", { "aria-rowindex": place + 2, "aria-selected": String(i === this.open_task) }, ...cells);
    }
    open(i) {
      const { texts, name, note, rows, records } = this.data;
      this.open_task = i;
      this.first = undefined;
      this.draw();
      const label = texts[name[i]], task = /^\d+$/.test(label) ? `${this.box.dataset.step}[${label}]` : label;
      const parts = [make("h4", { style: "margin-top:0" }, make("bdi", {}, task))];
      if (texts[note[i]]) parts.push(make("p", {}, make("bdi", {}, texts[note[i]])));
      if (records[i].length) {
        const titles = ["asked", "granted", "seen", "used"];
        const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
        const body = records[i].map((row) => make("tr", {}, ...rows[row].map((text, at) => {
          const short = texts[text].endsWith(" !");
          const shown = short ? make("span", { class: "short", title: "less than was asked for" }, texts[text]) : texts[text];
          return make("td", { "data-name": titles[at] }, shown);
        })));
        parts.push(make("table", { class: "records" }, make("thead", {}, head), make("tbody", {}, ...body)));
      }
      const quoted = `'${task.replaceAll("'", "'\\''")}'`;
      const command = make("code", {}, `upshift logs ${document.body.dataset.run} ${quoted}`);
      parts.push(make("p", { class: "quiet" }, "What it printed: ", command));
      this.chosen.replaceChildren(...parts);
    }
  }

  // What is opened later.

  const frames = new Set();
  window.addEventListener("message", ({ source, data }) => {
    for (const frame of frames) {
      if (frame.contentWindow === source && Number.isFinite(data)) frame.style.height = `${Math.min(Math.max(data, 40), 900)}px`;
    }
  });
  const prepare = (root) => {
    new Scope(root);
    for (const box of all("[data-tasks]", root)) new Tasks(box);
    for (const frame of all("iframe", root)) frames.add(frame);
    for (const frame of all("iframe[data-library]", root)) {
      const code = kept(frame.dataset.library);
      frame.srcdoc = `${frame.dataset.document}<script>${code}<\/script><script>${frame.dataset.draw}<\/script>`;
    }
  };
  const fill = (details) => {
    const inner = details.querySelector(":scope > .inner");
    if (inner.dataset.filled) return;
    inner.dataset.filled = "yes";
    inner.innerHTML = kept("later-" + details.dataset.later);
    prepare(inner);
  };
  const laters = all("details.later");
  const idle = window.requestIdleCallback || ((call) => setTimeout(call, 1));
  for (const details of laters) {
    details.addEventListener("toggle", () => { if (details.open) fill(details); });
    if (details.open) idle(() => { if (details.open) fill(details); });
  }
  let opened = [];
  window.addEventListener("beforeprint", () => {
    opened = laters.filter((details) => !details.open).slice(0, 40);
    for (const details of laters.filter((each) => each.open).concat(opened)) { details.open = true; fill(details); }
  });
  window.addEventListener("afterprint", () => { for (const details of opened) details.open = false; });

  // Colours.

  const theme = document.getElementById("theme");
  const themes = ["system", "light", "dark"];
  const wear = (chosen) => {
    const known = themes.includes(chosen) ? chosen : "system";
    document.documentElement.dataset.theme = known;
    theme.setAttribute("aria-label", known === "system" ? "Colours: as the system has them" : `Colours: ${known}`);
    theme.textContent = { system: "◐", light: "○", dark: "●" }[known];
  };
  wear(memory.get(local, "upshift theme"));
  theme.addEventListener("click", () => {
    const next = themes[(themes.indexOf(document.documentElement.dataset.theme) + 1) % themes.length];
    memory.set(local, "upshift theme", next);
    wear(next);
  });

  // A run that goes on: the file is written anew every few seconds, and the page loads it again where it was.

  const before = memory.get(session, place);
  if (before) {
    memory.set(session, place, null);
    for (const details of laters) {
      const was = before.open[details.dataset.later];
      if (was !== undefined) details.open = was;
      if (details.open && before.filled.includes(details.dataset.later)) fill(details);
    }
    const read = document.getElementById(before.at);
    const top = read ? read.getBoundingClientRect().top - before.top : before.top;
    window.scrollBy({ top, behavior: "instant" });
  }
  const every = Number(document.body.dataset.every);
  const pause = document.getElementById("pause");
  const reload = () => {
    if (pause.getAttribute("aria-pressed") === "true" || document.hidden || document.querySelector(".tip")) return;
    // What is read stays where it is, whatever comes above it.
    const above = all("section[id], article[id]").filter((one) => one.getBoundingClientRect().top < innerHeight / 3).pop();
    memory.set(session, place, {
      at: above ? above.id : "",
      top: above ? above.getBoundingClientRect().top : window.scrollY,
      open: Object.fromEntries(laters.map((details) => [details.dataset.later, details.open])),
      filled: laters.filter((details) => details.querySelector(".inner").dataset.filled).map((details) => details.dataset.later),
    });
    window.location.reload();
  };
  if (every && pause) {
    history.scrollRestoration = "manual";
    pause.addEventListener("click", () => pause.setAttribute("aria-pressed", String(pause.getAttribute("aria-pressed") !== "true")));
    window.setInterval(reload, every * 1000);
  }
})();
