// Charts. uPlot draws them; here are colours, values under the pointer, keys, and what moves together.

const numbers = once(() => kept("figures"));
const column = (at) => (at === undefined ? undefined : numbers().columns[at]);
const probe = make("i", { class: "hidden" });
document.body.append(probe);
const colour = (name, alpha = 1) => {
  probe.style.color = alpha < 1 ? `color-mix(in srgb, var(${name}) ${100 * alpha}%, transparent)` : `var(${name})`;
  return getComputedStyle(probe).color;
};
const COLOURS = 8;
const FEW = 8; // lines that have a colour each; more share one, and that below the pointer stands out
const STEPS_OF_TIME = [0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 15, 30, 60, 120, 300, 600, 900,
  1800, 3600, 7200, 10800, 21600, 43200, 86400, 172800, 432000, 864000];
const STEPS_OF_BYTES = [...Array(16).keys()].flatMap((power) => [1, 2, 5].map((number) => number * 10 ** power));
const axis = (side, words, more) => {
  const line = { stroke: () => colour("--rule"), width: 1 };
  const wide = (u, texts) => 16 + 6.3 * Math.max(...(texts || [""]).map((text) => text.length), 3);
  return {
    stroke: () => colour("--soft"),
    font: `11px ${getComputedStyle(document.body).fontFamily}`,
    grid: line,
    ticks: { ...line, size: 4 },
    gap: 5,
    space: side ? 34 : 74,
    size: side ? wide : 28,
    values: (u, places) => places.map((place, i) => (place === null ? "" : words(place, i))),
    ...more,
  };
};

class Chart {
  constructor(figure) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.settings = { across: "step", log: false, smooth: 0 };
    this.hidden = new Set();
    this.plot.addEventListener("keydown", (event) => this.key(event));
    this.plot.addEventListener("blur", () => this.leave());
    const widen = figure.querySelector(".widen");
    if (widen) {
      widen.addEventListener("click", () => {
        widen.setAttribute("aria-pressed", String(figure.classList.toggle("wide")));
      });
    }
    for (const button of all(".key", figure)) {
      button.addEventListener("click", () => {
        const shown = button.getAttribute("aria-pressed") !== "true", line = Number(button.dataset.line);
        button.setAttribute("aria-pressed", String(shown));
        this.hidden[shown ? "delete" : "add"](line);
        if (this.u) for (const at of this.series[line].all) this.u.setSeries(at, { show: shown });
      });
    }
  }

  // What is drawn: lines with their places, each with x and y, and low and high where it has a band.
  get spec() { return numbers().charts[this.figure.dataset.chart]; }
  get across() { return this.spec.across === "s" ? "s" : this.settings.across; }
  get lines() {
    return this.spec.lines.map((line) => ({
      ...line,
      x: column(this.across === "s" && line.times !== undefined ? line.times : line.x),
      y: this.shape(column(line.y)),
      low: this.shape(column(line.low)),
      high: this.shape(column(line.high)),
    }));
  }
  shape(values) {
    if (!values) return undefined;
    let last;
    return values.map((value) => {
      if (value === null || (this.settings.log && value <= 0)) return null;
      const weight = last === undefined ? 0 : this.settings.smooth;
      last = weight * (last ?? 0) + (1 - weight) * value;
      return last;
    });
  }

  draw() {
    const { spec } = this;
    const lines = this.lines, tables = [];
    const few = lines.length <= FEW;
    this.series = [];
    this.u?.destroy();
    const series = [{}], bands = [];
    for (const [number, line] of lines.entries()) {
      const at = series.length, show = !this.hidden.has(number), name = `--c${few ? number % COLOURS : line.best ? 1 : 0}`;
      const ys = [line.y];
      series.push({
        show, width: line.best ? 2.2 : few ? 1.6 : 1.3, points: { show: line.x.length < 2 },
        stroke: () => colour(name), alpha: few || line.best ? 1 : 0.4,
      });
      if (line.low && line.high) {
        ys.push(line.low, line.high);
        for (let i = 0; i < 2; i += 1) series.push({ show, width: 0, points: { show: false } });
        bands.push({ series: [at + 2, at + 1], fill: () => colour(name, 0.17) });
      }
      this.series.push({ line, at, all: ys.map((_, i) => at + i) });
      tables.push([line.x, ...ys]);
    }
    const same = lines.every((line) => line.x === lines[0].x);
    const data = same && tables.length ? [lines[0].x, ...tables.flatMap(([, ...ys]) => ys)] : uPlot.join(tables);
    const box = this.plot.getBoundingClientRect();
    this.u = new uPlot({
      width: box.width,
      height: box.height,
      series,
      bands,
      legend: { show: false },
      focus: { alpha: few ? 1 : 0.4 },
      scales: {
        x: { time: false, range: (u, low, high) => (low === high ? [low - 0.5, high + 0.5] : [low, high]) },
        y: { distr: this.settings.log ? 3 : 1, range: (u, low, high) => this.range(low, high) },
      },
      axes: this.axes(),
      cursor: {
        y: false,
        drag: { x: true, y: false, setScale: true },
        focus: { prox: few ? -1 : 40 },
        points: { size: 7, width: 1.5, stroke: () => colour("--page"), fill: (u, at) => u.series[at].stroke() },
        dataIdx: (u, at, place) => nearest(u.data[at], place),
        bind: { dblclick: () => () => { this.look(null); return null; } },
      },
      hooks: {
        setCursor: [() => this.moved()],
        setSeries: [(u, at, options) => { if (options.focus !== undefined) this.near = at; }],
        setScale: [(u, key) => { if (key === "x") this.scope?.follow(this, u.scales.x.min, u.scales.x.max); }],
        draw: [() => this.drawMarks()],
      },
    }, data, this.plot);
    if (this.spec.span && this.across === "s") this.u.setScale("x", { min: this.whole[0], max: this.whole[1] });
    this.scope?.joined(this);
    this.figure.dataset.drawn = "yes";
  }
  axes() {
    const time = this.across === "s", { unit, across } = this.spec;
    return [
      axis(0, (place, i) => (time ? clock(place) : `${i ? "" : `${across} `}${figures(place, 6)}`), { grid: { show: false }, ...(time && { incrs: STEPS_OF_TIME }) }),
      axis(1, (place) => amount(place, unit), unit.startsWith("bytes") ? { incrs: STEPS_OF_BYTES } : {}),
    ];
  }
  range(low, high) {
    const { limit, from_zero: zero, high: top } = this.spec;
    if (low === null || high === null) return [0, 1];
    if (this.settings.log) return uPlot.rangeLog(low, high, 10, false);
    if (limit && limit[0] <= 4 * high) high = Math.max(high, limit[0]);
    if (top !== null) high = top;
    const part = { pad: 0.06, soft: 0, mode: zero ? 1 : 3 };
    const [bottom, up] = uPlot.rangeNum(zero ? Math.min(low, 0) : low, high, { min: part, max: { pad: 0.06 } });
    return [zero && low >= 0 ? 0 : bottom, top ?? up];
  }

  // The limit, and moments of interest.
  drawMarks() {
    const { u, spec } = this, { ctx, bbox } = u;
    const stroke = (name, dash, from, to) => {
      ctx.save();
      ctx.strokeStyle = colour(name);
      ctx.lineWidth = devicePixelRatio * 1.3;
      ctx.setLineDash(dash.map((length) => length * devicePixelRatio));
      ctx.beginPath();
      ctx.moveTo(...from);
      ctx.lineTo(...to);
      ctx.stroke();
      ctx.restore();
    };
    if (spec.limit && spec.limit[0] <= u.scales.y.max) {
      const y = u.valToPos(spec.limit[0], "y", true);
      stroke("--warn", [5, 4], [bbox.left, y], [bbox.left + bbox.width, y]);
    }
    for (const [moment] of spec.marks) {
      const x = u.valToPos(moment, "x", true);
      if (x >= bbox.left && x <= bbox.left + bbox.width) stroke("--bad", [], [x, bbox.top], [x, bbox.top + bbox.height]);
    }
  }

  // Where the pointer is.
  moved() {
    const { u } = this;
    if (u.cursor.left < 0 || u.cursor.idx === null || u.cursor.idx === undefined) { this.tip?.remove(); this.tip = null; return; }
    const x = u.posToVal(u.cursor.left, "x");
    if (!this.led) this.scope?.point(this, x);
    if (this.led) { this.tip?.remove(); this.tip = null; return; }
    const told = this.told(u.cursor.idx);
    if (!told.length) return;
    this.tip ??= this.plot.appendChild(make("div", { class: "tip" }));
    this.tip.replaceChildren(make("b", {}, this.mark(told[0].x)), ...this.marks(x), ...told.map(({ line, text, number }) => {
      const label = line.label ? [make("span", {}, line.label)] : [];
      return make("div", { class: `c${this.series.length <= FEW ? number % COLOURS : 0}` }, make("i"), ...label, make("span", {}, text));
    }));
    const left = u.bbox.left / devicePixelRatio + u.cursor.left, right = left > this.plot.clientWidth / 2;
    this.tip.style.left = right ? "" : `${left + 12}px`;
    this.tip.style.right = right ? `${this.plot.clientWidth - left + 12}px` : "";
  }
  told(place) {
    const { u } = this;
    const many = this.series.length > FEW;
    return this.series.flatMap(({ line, at }, number) => {
      if (this.hidden.has(number) || (many && at !== this.near)) return [];
      const found = nearest(u.data[at], place), value = found === null ? null : u.data[at][found];
      if (value === null || value === undefined) return [];
      let text = amount(value, this.spec.unit);
      const low = line.low && u.data[at + 1][found], high = line.high && u.data[at + 2][found];
      if (low !== high) text += ` (${amount(low, this.spec.unit)} – ${amount(high, this.spec.unit)})`;
      return [{ line, text, number, x: u.data[0][found] }];
    });
  }
  mark(x) { return this.across === "s" ? clock(x) : `${this.spec.across} ${x.toLocaleString("en", { maximumFractionDigits: 9 })}`; }
  marks(x) {
    const reach = (this.u.scales.x.max - this.u.scales.x.min) / 60;
    const found = this.spec.marks.filter(([moment]) => Math.abs(moment - x) < reach);
    return found.map(([, what]) => make("div", { class: "event" }, what));
  }
  leave() { this.u?.setCursor({ left: -10, top: -10 }); this.here = undefined; }
  focus(task) {
    if (!this.u) return;
    const found = this.series.find(({ line }) => line.task === task);
    this.u.setSeries(found ? found.at : null, { focus: true });
    for (const { at } of this.series) this.u.series[at].width = found && at === found.at ? 2.6 : this.series.length > FEW ? 1.3 : 1.6;
    this.u.redraw(false);
  }

  // What part is looked at.
  get whole() {
    const { span } = this.spec, [xs] = this.u.data;
    return span && this.across === "s" ? [span[0], span[1]] : [xs[0], xs[xs.length - 1]];
  }
  look(view) {
    const [min, max] = view || this.whole;
    this.u.setScale("x", { min, max });
  }
  key(event) {
    if (!this.u || event.ctrlKey || event.metaKey || event.altKey) return;
    const [xs] = this.u.data, { min, max } = this.u.scales.x, last = xs.length - 1;
    const stride = event.shiftKey ? 10 : 1, now = this.here ?? xs.findIndex((x) => x >= min) - stride;
    const next = { ArrowLeft: now - stride, ArrowRight: now + stride, Home: 0, End: last }[event.key];
    if (next !== undefined) {
      this.here = Math.min(Math.max(next, 0), last);
      const x = xs[this.here];
      if (x < min || x > max) {
        const half = (max - min) / 2, middle = Math.min(Math.max(x, xs[0] + half), xs[last] - half);
        this.look([middle - half, middle + half]);
      }
      this.u.setCursor({ left: this.u.valToPos(x, "x"), top: this.u.bbox.height / 2 / devicePixelRatio });
      announcer.textContent = [this.mark(x), ...this.told(this.here).map(({ line, text }) => `${line.label} ${text}`.trim())].join(", ");
    } else if ("+=-".includes(event.key)) {
      const half = (max - min) * (event.key === "-" ? 1 : 0.25), middle = this.here === undefined ? (min + max) / 2 : xs[this.here];
      const [low, high] = this.whole, from = Math.min(Math.max(middle - half, low), Math.max(high - 2 * half, low));
      this.look([from, Math.min(from + 2 * half, high)]);
    } else if (event.key === "0" || event.key === "Escape") {
      this.look(null);
      this.leave();
    } else {
      return;
    }
    event.preventDefault();
  }
  zoomed() {
    const { min, max } = this.u.scales.x, [low, high] = this.whole;
    this.plot.dataset.view = `${min} ${max}`;
    const closer = max - min < (high - low) * 0.999;
    if (closer && !this.back) {
      this.back = make("button", { type: "button", class: "back" }, "Show all");
      this.back.addEventListener("click", () => { this.look(null); this.plot.focus(); });
      this.plot.append(this.back);
    } else if (!closer && this.back) {
      this.back.remove();
      this.back = null;
    }
  }
}

// The place of a value nearest to another place: joined lines have none at each place.
const nearest = (values, place) => {
  if (place === null || place === undefined) return null;
  for (let away = 0; away < values.length; away += 1) {
    for (const at of [place - away, place + away]) {
      if (values[at] !== null && values[at] !== undefined) return at;
    }
    if (values[place] === null) return null; // a gap: nobody knew
  }
  return null;
};

// Charts of the same time, or of the same count, move together.
class Scope {
  constructor() { this.charts = []; }
  like(chart) { return this.charts.filter((one) => one !== chart && one.u && one.across === chart.across); }
  point(chart, x) {
    for (const other of this.like(chart)) {
      other.led = true;
      const { min, max } = other.u.scales.x;
      other.u.setCursor(x >= min && x <= max ? { left: other.u.valToPos(x, "x"), top: 0 } : { left: -10, top: -10 });
      other.led = false;
    }
  }
  follow(chart, min, max) {
    chart.zoomed();
    if (this.busy) return;
    this.busy = true;
    this.view = { across: chart.across, min, max };
    for (const other of this.like(chart)) other.u.setScale("x", { min, max });
    this.busy = false;
  }
  joined(chart) {
    const { view } = this;
    if (view && view.across === chart.across) chart.u.setScale("x", view);
  }
}

const charts = new Map();
const resized = new ResizeObserver((entries) => {
  for (const { target, contentRect: { width, height } } of entries) {
    const chart = charts.get(target.closest("figure"));
    if (chart?.u && width && (chart.u.width !== width || chart.u.height !== height)) chart.u.setSize({ width, height });
  }
});
const seen = new IntersectionObserver((entries) => {
  for (const { target, isIntersecting } of entries) {
    if (isIntersecting) { seen.unobserve(target); charts.get(target).draw(); }
  }
}, { rootMargin: "400px" });
const scopes = new WeakMap();
const prepareCharts = (root) => {
  for (const figure of all("figure[data-chart]", root)) {
    const chart = new Chart(figure), box = figure.closest("[data-scope]") || figure;
    if (!scopes.has(box)) scopes.set(box, new Scope());
    chart.scope = scopes.get(box);
    chart.scope.charts.push(chart);
    fill(chart);
  }
  for (const tool of all("[data-set]", root)) {
    tool.addEventListener("input", () => {
      const box = scopes.get(tool.closest("[data-scope]"));
      box.view = undefined;
      for (const chart of box.charts) {
        chart.settings[tool.dataset.set] = tool.type === "checkbox" ? tool.checked : tool.type === "range" ? Number(tool.value) : tool.value;
        if (chart.u) chart.draw();
      }
    });
  }
};
const drawAll = () => { for (const [figure, chart] of charts) if (!chart.u && figure.isConnected) chart.draw(); };
const recolour = () => { for (const chart of charts.values()) chart.u?.redraw(false); };
const fill = (chart) => { // drawn once it comes into view, and as large as its place
  charts.set(chart.figure, chart);
  resized.observe(chart.plot);
  seen.observe(chart.figure);
};
