// The tasks of a step as points: one column of their table against another.

class Scatter {
  constructor(figure, table) {
    this.figure = figure;
    this.plot = figure.querySelector(".plot");
    this.table = table;
    const numeric = table.columns.filter(({ kind, values }) => kind in UNITS && values.some((value) => value !== null));
    const varied = numeric.filter(({ values }) => new Set(values).size > 1);
    const number = { title: "task", kind: "number", values: table.columns[0].values.map((_, i) => i) };
    const choose = (label, columns, chosen) => {
      const select = make("select", { "aria-label": label }, ...columns.map(({ title }) => make("option", {}, title)));
      select.selectedIndex = Math.max(columns.indexOf(chosen), 0);
      select.addEventListener("change", () => this.draw());
      return { select, get column() { return columns[select.selectedIndex]; } };
    };
    this.up = choose("What goes up", numeric, varied.find((column) => column.of === "metric") || varied.find(({ kind }) => kind === "number") || numeric[0]);
    this.along = choose("What goes along", [number, ...varied], varied.find((column) => column.of === "input" && column !== this.up.column) || number);
    figure.querySelector("figcaption").append(this.up.select, " by ", this.along.select);
    fill(this);
  }
  draw() {
    const { table } = this, along = this.along.column, up = this.up.column;
    const status = table.columns[table.is("status")], { texts } = table.data;
    const rows = along.values.map((_, i) => i).filter((i) => along.values[i] !== null && up.values[i] !== null);
    rows.sort((a, b) => along.values[a] - along.values[b]);
    const words = [...new Set(rows.map((i) => texts[status.values[i]]))];
    this.rows = rows;
    this.near = null;
    this.u?.destroy();
    const x = this.scale(along, rows), y = this.scale(up, rows);
    this.u = new uPlot({
      width: this.plot.clientWidth,
      height: this.plot.clientHeight,
      legend: { show: false },
      scales: { x: { time: false, ...x }, y },
      axes: [along, up].map((column, side) => axis(side, (place) => amount(place, UNITS[column.kind]))),
      cursor: { x: false, y: false, drag: { x: false, y: false }, points: { show: false } },
      series: [{}, ...words.map((word) => ({
        paths: () => null,
        points: { show: true, size: rows.length > 1000 ? 3 : 6, width: 0, fill: () => colour(STATUS[word] || "--faint", 0.75) },
      }))],
      hooks: { setCursor: [() => this.moved()], draw: [() => this.ring()] },
    }, [rows.map((i) => along.values[i]), ...words.map((word) => rows.map((i) => (texts[status.values[i]] === word ? up.values[i] : null)))], this.plot);
    this.u.over.addEventListener("click", () => { if (this.near !== null) table.open(this.near); });
  }
  scale(column, rows) {
    const found = rows.map((i) => column.values[i]), low = Math.min(...found), high = Math.max(...found);
    if (low > 0 && high / low >= 50) return { distr: 3, range: uPlot.rangeLog(low, high, 10, false) };
    const pad = (high - low) * 0.05 || Math.abs(high) * 0.05 || 1;
    return { range: [column.kind === "number" ? low - pad : Math.max(low - pad, 0), high + pad] };
  }
  moved() {
    const { u, rows } = this, { left, top } = u.cursor;
    const before = this.near;
    this.near = null;
    if (left >= 0) {
      let best = 14 ** 2;
      for (const i of rows) {
        const x = u.valToPos(this.along.column.values[i], "x") - left, y = u.valToPos(this.up.column.values[i], "y") - top;
        if (x * x + y * y < best) { best = x * x + y * y; this.near = i; }
      }
    }
    if (this.near === before) return;
    this.tip?.remove();
    this.table.point(this.near);
    u.over.style.cursor = this.near === null ? "default" : "pointer";
    if (this.near !== null) {
      const { columns } = this.table;
      this.tip = this.plot.appendChild(make("div", { class: "tip" }, make("b", {}, `task ${this.table.text(columns[0], this.near)}`),
        ...[this.along.column, this.up.column].filter(({ title }) => title !== "task").map((column) => make("div", {},
          make("span", {}, column.title), make("span", {}, amount(column.values[this.near], UNITS[column.kind]))))));
      const right = left > u.over.clientWidth / 2, base = u.bbox.left / devicePixelRatio;
      this.tip.style[right ? "right" : "left"] = `${right ? this.plot.clientWidth - base - left + 14 : base + left + 14}px`;
    }
    u.redraw(false);
  }
  // Around the point that is near, and that which is open.
  ring() {
    const { ctx } = this.u;
    for (const i of [this.near, this.table.open_task]) {
      if (i === null || i === undefined || this.up.column.values[i] === null || this.along.column.values[i] === null) continue;
      ctx.save();
      ctx.strokeStyle = colour("--ink");
      ctx.lineWidth = 1.5 * devicePixelRatio;
      ctx.beginPath();
      ctx.arc(this.u.valToPos(this.along.column.values[i], "x", true), this.u.valToPos(this.up.column.values[i], "y", true), 6 * devicePixelRatio, 0, 7);
      ctx.stroke();
      ctx.restore();
    }
  }
}
const UNITS = { number: "", bytes: "bytes", duration: "duration" };
const STATUS = { completed: "--good", failed: "--bad", running: "--busy", cancelled: "--warn", interrupted: "--warn", reused: "--reused" };
