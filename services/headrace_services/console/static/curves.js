// The curves of many trials: by step or by time, of any metric, on a linear or logarithmic axis.
import { Chart, Scale, bar, choice, colorOf, css, extent, legend, short } from "./chart.js";

const ORDER = ["stopped_early", "cancelled", "infeasible", "pending", "paused", "failed", "completed", "resumed", "running"];

export class Curves {
  constructor(element, { metric, rungs = [], best = null, open = null, height = 340, choose = true }) {
    Object.assign(this, { metric, rungs, best, open, x: "step", log: false, zoom: null, trials: [] });
    const row = bar(element);
    this.fill = choose ? choice(row, "Metric", [metric], metric, (name) => this.set({ metric: name, zoom: null })) : () => {};
    choice(row, "Horizontal axis", ["step", "time"], "step", (x) => this.set({ x, zoom: null }));
    choice(row, "Vertical axis", ["linear", "log"], "linear", (kind) => this.set({ log: kind === "log", zoom: null }));
    this.reset = Object.assign(document.createElement("button"), { type: "button", textContent: "Whole", hidden: true });
    this.reset.addEventListener("click", () => this.set({ zoom: null }));
    this.legend = Object.assign(document.createElement("span"), { className: "legend" });
    row.append(this.reset, this.legend);
    this.chart = new Chart(element, { height, title: "Learning curves; the table of trials has the values", draw: () => this.draw(), over: () => this.follow() });
    const { canvas } = this.chart;
    canvas.addEventListener("pointerdown", (event) => (this.drag = this.chart.place(event)));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    canvas.addEventListener("pointerup", (event) => this.up(event));
    canvas.addEventListener("pointerleave", () => {
      this.drag = this.dragTo = null;
      this.point(null);
      this.chart.follow();
    });
    canvas.addEventListener("dblclick", () => this.set({ zoom: null }));
  }

  set(changes) {
    Object.assign(this, changes);
    this.reset.hidden = !this.zoom;
    this.chart.redraw();
  }

  show(trials, metrics) {
    const rank = (one) => ORDER.indexOf(one.outcome);
    this.trials = [...trials].sort((a, b) => rank(a) - rank(b));
    this.fill(metrics.length ? metrics : [this.metric], this.metric);
    if (this.trials.length > 1) legend(this.legend, new Set(trials.map((one) => one.outcome)));
    this.chart.redraw();
  }

  xs(one) { return this.x === "step" ? one.steps : one.times; }
  ys(one) { return one.metrics[this.metric] ?? []; }

  draw() {
    const { chart } = this, at = chart.box;
    const [xs, ys] = this.zoom ?? [extent(this.trials.map((one) => this.xs(one))), extent(this.trials.map((one) => this.ys(one)), this.log)];
    this.sx = new Scale(xs, [at.left, at.right]);
    this.sy = new Scale(ys, [at.bottom, at.top], this.log);
    chart.axes(this.sx, this.sy, this.x === "step" ? "step" : "seconds", this.metric, { whole: this.x === "step", empty: !this.trials.some((one) => this.ys(one).some((y) => Number.isFinite(y) && !(this.log && y <= 0))) });
    chart.clip();
    this.drawRungs(at);
    const c = chart.context;
    c.globalAlpha = this.trials.length > 200 ? 0.35 : 0.7;
    let path = null, outcome = null;
    const flush = () => {
      if (!path) return;
      c.strokeStyle = colorOf(outcome);
      c.lineWidth = 1;
      c.stroke(path);
    };
    for (const one of this.trials) {
      if (one.outcome !== outcome) {
        flush();
        path = new Path2D();
        outcome = one.outcome;
      }
      this.trace(path, one);
    }
    flush();
    c.globalAlpha = 1;
    const best = this.trials.find((one) => one.number === this.best);
    if (best) this.stroke(best, css("--best"), 2.5);
    c.restore();
  }

  /** The curve under the pointer, and the part that is dragged over. */
  follow() {
    const { chart } = this;
    chart.clip();
    if (this.near) this.stroke(this.near, css("--ink"), 2);
    chart.context.restore();
    if (this.drag && this.dragTo) this.drawDrag();
  }

  drawRungs(at) {
    if (this.x !== "step" || this.rungs.length > 40) return;
    const c = this.chart.context;
    c.strokeStyle = css("--line");
    c.setLineDash([2, 3]);
    for (const rung of this.rungs) this.chart.line(this.sx.at(rung), at.top, this.sx.at(rung), at.bottom);
    c.setLineDash([]);
  }

  drawDrag() {
    const c = this.chart.context, [[x1, y1], [x2, y2]] = [this.drag, this.dragTo];
    c.strokeStyle = css("--accent");
    c.strokeRect(Math.min(x1, x2), Math.min(y1, y2), Math.abs(x2 - x1), Math.abs(y2 - y1));
  }

  trace(path, one) {
    const xs = this.xs(one), ys = this.ys(one);
    let pen = false, count = 0, last = 0;
    for (let i = 0; i < ys.length; i++) {
      const y = ys[i];
      if (!Number.isFinite(y) || (this.log && y <= 0)) { pen = pen && this.x !== "step"; continue; }
      const px = this.sx.at(xs[i]), py = this.sy.at(y);
      if (pen) path.lineTo(px, py);
      else path.moveTo(px, py);
      pen = true;
      count++;
      last = i;
    }
    if (count === 1) path.arc(this.sx.at(xs[last]), this.sy.at(ys[last]), 1.5, 0, 7);
  }

  stroke(one, color, width) {
    const path = new Path2D();
    this.trace(path, one);
    this.chart.context.strokeStyle = color;
    this.chart.context.lineWidth = width;
    this.chart.context.stroke(path);
  }

  move(event) {
    const [x, y] = this.chart.place(event);
    if (this.drag && event.buttons) {
      this.dragTo = [x, y];
      this.chart.follow();
      return;
    }
    this.point(this.nearest(x, y), x, y);
  }

  nearest(x, y) {
    let found = null, least = 400;
    for (const one of this.trials) {
      const xs = this.xs(one), ys = this.ys(one);
      for (let i = 0; i < ys.length; i++) {
        const dx = this.sx.at(xs[i]) - x;
        if (dx * dx >= least) continue;
        const dy = this.sy.at(ys[i]) - y, square = dx * dx + dy * dy;
        if (square < least) [found, least] = [{ one, i }, square];
      }
    }
    return found;
  }

  point(found, x, y) {
    const near = found?.one ?? null;
    if (near !== this.near) {
      this.near = near;
      this.chart.canvas.style.cursor = near && this.open ? "pointer" : "";
      this.chart.follow();
    }
    this.chart.say(found ? `trial ${near.number}, ${near.outcome.replace("_", " ")}\nstep ${near.steps[found.i]}: ${short(this.ys(near)[found.i])}` : "", x, y);
  }

  up(event) {
    const [from, to] = [this.drag, this.dragTo];
    this.drag = this.dragTo = null;
    this.chart.follow();
    if (from && to && Math.abs(from[0] - to[0]) > 6 && Math.abs(from[1] - to[1]) > 6) {
      const sort = (a, b) => [Math.min(a, b), Math.max(a, b)];
      return this.set({ zoom: [sort(this.sx.of(from[0]), this.sx.of(to[0])), sort(this.sy.of(from[1]), this.sy.of(to[1]))] });
    }
    if (this.near && this.open) this.open(this.near.number, event);
  }
}
