// Tables: sorted by their heads; that of a step's tasks, of which only the rows in view are elements; rows that open.

const compare = (one, other) => {
  if (one === other) return 0;
  if (one === null || one === "") return 1;
  if (other === null || other === "") return -1;
  return one < other ? -1 : 1;
};
const sortButton = (head, sort) => {
  const button = make("button", { type: "button" }, ...head.childNodes);
  head.replaceChildren(button);
  button.addEventListener("click", sort);
};
const prepareTables = (root) => {
  for (const table of all("table.sortable", root)) {
    const heads = all("thead th", table);
    const bodies = table.tBodies.length > 1;
    const parent = bodies ? table : table.tBodies[0];
    if (!parent || (bodies ? table.tBodies : parent.rows).length < 2) continue;
    heads.forEach((head, at) => sortButton(head, () => {
      const falling = head.getAttribute("aria-sort") === "ascending";
      for (const other of heads) other.removeAttribute("aria-sort");
      head.setAttribute("aria-sort", falling ? "descending" : "ascending");
      const value = (one) => {
        const cell = (bodies ? one.rows[0] : one).cells[at];
        return cell.dataset.value === undefined ? cell.textContent.trim().toLowerCase() : Number(cell.dataset.value);
      };
      const rows = [...(bodies ? table.tBodies : parent.rows)].map((row) => [value(row), row]);
      const numeric = rows.some(([found]) => typeof found === "number");
      rows.sort(([a], [b]) => {
        const [one, other] = [a, b].map((found) => (numeric && typeof found !== "number" ? null : found));
        return one === null || other === null || !falling ? compare(one, other) : -compare(one, other);
      });
      parent.append(...rows.map(([, row]) => row));
    }));
  }
};

const ROW = 29;
const WIDTHS = { status: "7rem", s: "6rem", duration: "6rem", bytes: "7rem", number: "6.5rem" };
class Tasks {
  constructor(box) {
    this.box = box;
    this.data = kept(`data-${box.dataset.tasks}`);
    this.columns = this.data.columns;
    this.full = new Set(this.data.full);
    this.sort = [0, 1];
    this.build();
    this.choose();
    const figure = box.parentElement.querySelector(".scatter");
    if (figure) this.scatter = new Scatter(figure, this);
  }
  is(kind) { return this.columns.findIndex((column) => column.kind === kind); }
  value(column, i) {
    const found = column.values[i];
    if (found === null || column === this.columns[0]) return column === this.columns[0] ? i : null;
    return column.kind === "text" || column.kind === "status" ? this.data.texts[found] : found;
  }
  text(column, i) {
    const found = column.values[i];
    if (found === null) return "";
    if (column.kind === "text" || column.kind === "status") return this.data.texts[found];
    return amount(found, column.kind === "number" ? "" : column.kind);
  }
  build() {
    const { texts } = this.data, status = this.columns[this.is("status")];
    const counts = new Map();
    for (const each of status.values) counts.set(texts[each], (counts.get(texts[each]) || 0) + 1);
    this.filter = make("select", { "aria-label": "Status" }, make("option", { value: "" }, "all"));
    for (const [word, count] of counts) this.filter.append(make("option", { value: word }, `${word} (${count})`));
    this.search = make("input", { type: "search", placeholder: "Search", "aria-label": "Search tasks" });
    this.told = make("span", { class: "quiet", role: "status" });
    this.filter.addEventListener("change", () => this.choose());
    this.search.addEventListener("input", () => this.choose());
    this.heads = this.columns.map((column, at) => {
      const head = make("th", { scope: "col", ...(column.kind in WIDTHS && column.kind !== "status" ? { class: "number" } : {}) }, column.title);
      head.style.width = at === 0 ? "7rem" : WIDTHS[column.kind] || "auto";
      sortButton(head, () => {
        this.sort = [at, this.sort[0] === at ? -this.sort[1] : 1];
        this.choose();
      });
      return head;
    });
    this.body = make("tbody");
    this.table = make("table", { class: "data" }, make("thead", {}, make("tr", {}, ...this.heads)), this.body);
    this.window = make("div", { class: "window", tabindex: 0, role: "region", "aria-label": "Tasks of " + this.data.step }, this.table);
    this.window.addEventListener("scroll", () => this.draw());
    this.chosen = make("div", { class: "chosen", role: "status" });
    this.box.append(make("div", { class: "tools" }, this.filter, this.search, this.told), this.window, this.chosen);
  }
  choose() {
    const word = this.filter.value, search = this.search.value.toLowerCase();
    const [at, direction] = this.sort, column = this.columns[at], status = this.columns[this.is("status")];
    const searched = this.columns.filter(({ kind }) => kind === "text");
    this.rows = status.values.map((_, i) => i).filter((i) => (!word || this.text(status, i) === word)
      && (!search || searched.some((each) => this.text(each, i).toLowerCase().includes(search))));
    const keys = new Map(this.rows.map((i) => [i, this.value(column, i)]));
    this.rows.sort((a, b) => {
      const one = keys.get(a), other = keys.get(b);
      return (one === null || other === null ? 1 : direction) * compare(one, other) || a - b;
    });
    this.heads.forEach((head, number) => head.setAttribute("aria-sort", number !== at ? "none" : direction > 0 ? "ascending" : "descending"));
    this.told.textContent = `${this.rows.length.toLocaleString("en")} of ${status.values.length.toLocaleString("en")} tasks`;
    this.table.setAttribute("aria-rowcount", this.rows.length + 1);
    this.first = undefined;
    this.window.scrollTop = 0;
    this.draw();
  }
  draw() {
    const first = Math.max(0, Math.floor(this.window.scrollTop / ROW) - 6), last = Math.min(this.rows.length, first + 34);
    if (first === this.first) return;
    this.first = first;
    const focused = document.activeElement && document.activeElement.dataset.task;
    const space = (rows) => {
      const cell = make("td", { colspan: this.columns.length });
      cell.style.height = `${rows * ROW}px`;
      return make("tr", { class: "space", "aria-hidden": "true" }, cell);
    };
    const shown = this.rows.slice(first, last).map((i, at) => this.row(i, first + at));
    this.body.replaceChildren(space(first), ...shown, space(this.rows.length - last));
    if (focused !== undefined) this.body.querySelector(`[data-task="${focused}"]`)?.focus({ preventScroll: true });
  }
  row(i, place) {
    const cells = this.columns.map((column, at) => {
      const text = this.text(column, i), cell = make("td");
      if (at === 0) {
        const button = make("button", { type: "button", "data-task": i }, make("bdi", {}, text));
        cell.append(button);
      } else if (column.kind === "status") {
        cell.append(make("span", { class: `state ${text}` }, text));
      } else {
        if (column.kind === "text") cell.title = text; else cell.className = "number";
        cell.append(make("bdi", i === column.best ? { class: "best", title: "the best" } : {}, text));
      }
      return cell;
    });
    const row = make("tr", { "aria-rowindex": place + 2, "aria-selected": String(i === this.open_task) }, ...cells);
    row.addEventListener("click", () => this.open(i));
    row.addEventListener("mouseenter", () => this.point(i));
    row.addEventListener("mouseleave", () => this.point(null));
    return row;
  }
  point(i) {
    const metrics = document.querySelector(`.metrics[data-step="${this.box.dataset.tasks}"]`);
    for (const chart of metrics ? scopes.get(metrics)?.charts || [] : []) chart.focus(i);
  }
  open(i) {
    const { texts, rows, records, step } = this.data;
    this.open_task = i;
    this.first = undefined;
    this.draw();
    this.scatter?.u?.redraw(false);
    const label = this.text(this.columns[0], i), task = /^\d+$/.test(label) ? `${step}[${label}]` : label;
    const status = this.columns[this.is("status")], why = this.columns.find(({ title }) => title === "why");
    const parts = [make("h4", {}, make("bdi", {}, task), " ", make("span", { class: `state ${this.text(status, i)}` }, this.text(status, i)))];
    const close = make("button", { type: "button", class: "close", "aria-label": "Close" }, "×");
    close.addEventListener("click", () => { this.open_task = undefined; this.first = undefined; this.draw(); this.chosen.replaceChildren(); });
    parts.push(close);
    const template = this.box.parentElement.querySelector(`template[data-task="${i}"]`);
    if (template) {
      parts.push(template.content.cloneNode(true));
    } else {
      if (why && this.text(why, i)) parts.push(make("p", {}, make("bdi", {}, this.text(why, i))));
      if (records[i].length) {
        const titles = ["asked", "granted", "seen", "used"];
        const head = make("tr", {}, ...titles.map((title) => make("th", { scope: "col" }, title)));
        const body = records[i].map((row) => make("tr", {}, ...rows[row].map((text, at) => make("td", { "data-name": titles[at] }, texts[text]))));
        parts.push(make("table", { class: "records" }, make("thead", {}, head), make("tbody", {}, ...body)));
      }
      const command = make("code", { class: "command" }, `upshift logs ${document.body.dataset.run} '${task.replaceAll("'", "'\\''")}'`);
      parts.push(make("p", { class: "quiet" }, "What it printed: ", command));
    }
    this.chosen.replaceChildren(...parts);
    prepareCharts(this.chosen);
    prepareTables(this.chosen);
  }
}

// Rows of steps that open.
const openRow = (opener, open) => {
  opener.setAttribute("aria-expanded", String(open));
  document.getElementById(opener.getAttribute("aria-controls")).hidden = !open;
};
const isOpen = (opener) => opener.getAttribute("aria-expanded") === "true";
const openers = all(".opener");
for (const opener of openers) {
  opener.closest("tr").addEventListener("click", (event) => {
    if (!event.target.closest("a")) openRow(opener, !isOpen(opener));
  });
}
const reveal = () => {
  const body = location.hash && document.getElementById(location.hash.slice(1));
  const opener = body && body.matches("tbody") && body.querySelector(".opener");
  if (opener) openRow(opener, true);
};
window.addEventListener("hashchange", reveal);
