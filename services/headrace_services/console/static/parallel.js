// Parallel coordinates: a line for each trial through its parameters and its value. Dragging along an axis filters.
import { Chart, Scale, css, extent, short } from "./chart.js";

const MOST_AXES = 12;

export class Parallel {
  constructor(element, { metric, goal, filterBy }) {
    Object.assign(this, { metric, goal, filterBy, trials: [], axes: [], brush: null });
    this.chart = new Chart(element, { height: 320, title: "Parameters and values of all trials; the table has them too", draw: () => this.draw(), over: () => this.follow(), margin: { left: 20, right: 70, top: 26, bottom: 14 } });
    const { canvas } = this.chart;
    canvas.addEventListener("pointerdown", (event) => this.down(event));
    canvas.addEventListener("pointermove", (event) => this.move(event));
    window.addEventListener("pointerup", () => this.up());
  }

  show(trials, params) {
    this.trials = trials.filter((one) => Number.isFinite(one.score));
    const sign = this.goal === "maximize" ? -1 : 1;
    this.trials.sort((a, b) => sign * (b.score - a.score)); // the best is drawn last
    this.axes = [
      ...params.slice(0, MOST_AXES).map((param, place) => ({ ...param, key: `param.${param.name}`, of: (one) => one.params[place] })),
      { name: this.metric, key: "score", of: (one) => one.score },
    ];
    this.chart.redraw();
  }

  draw() {
    const { chart, axes } = this, c = chart.context, at = chart.box;
    axes.forEach((axis, place) => {
      axis.x = at.left + (axes.length > 1 ? (place * (at.right - at.left)) / (axes.length - 1) : 0);
      const span = axis.choices ? [-0.5, axis.choices.length - 0.5] : extent([this.trials.map(axis.of)], axis.log);
      axis.scale = new Scale(span, [at.bottom, at.top], axis.log);
    });
    const score = extent([this.trials.map((one) => one.score)]);
    const [good, bad] = this.goal === "maximize" ? [score[1], score[0]] : score;
    c.lineWidth = 1;
    const groups = 12, count = this.trials.length;
    for (let group = 0; group < groups; group++) { // by rank, the worst first
      const path = new Path2D();
      const some = this.trials.slice(Math.floor((group * count) / groups), Math.floor(((group + 1) * count) / groups));
      for (const one of some) this.trace(path, one);
      c.strokeStyle = group === groups - 1 ? css("--best") : css("--completed");
      c.globalAlpha = (0.05 + (0.6 * (group + 1)) / groups) * (count > 1000 ? 0.4 : 1);
      c.stroke(path);
    }
    c.globalAlpha = 1;
    this.drawAxes(at, good, bad);
  }

  trace(path, one) {
    let pen = false;
    for (const axis of this.axes) {
      const value = axis.of(one);
      if (!Number.isFinite(value)) { pen = false; continue; }
      if (pen) path.lineTo(axis.x, axis.scale.at(value));
      else path.moveTo(axis.x, axis.scale.at(value));
      pen = true;
    }
  }

  drawAxes(at) {
    const c = this.chart.context;
    this.axes.forEach((axis, place) => {
      c.strokeStyle = css("--muted");
      this.chart.line(axis.x, at.top, axis.x, at.bottom);
      c.fillStyle = css("--ink");
      c.textAlign = place === 0 ? "left" : place === this.axes.length - 1 ? "right" : "center";
      c.textBaseline = "bottom";
      c.fillText(axis.name.length > 18 ? `${axis.name.slice(0, 17)}…` : axis.name, axis.x + (place === 0 ? -12 : place === this.axes.length - 1 ? 60 : 0), at.top - 6);
      c.textAlign = "left";
      c.textBaseline = "middle";
      c.fillStyle = css("--muted");
      const ticks = axis.choices ? axis.choices.map((name, n) => [n, String(name).slice(0, 12)]) : axis.scale.ticks(5).map((n) => [n, short(n)]);
      for (const [value, text] of ticks.slice(0, 20)) c.fillText(text, axis.x + 4, axis.scale.at(value));
    });
  }

  /** The brush. */
  follow() {
    if (this.brush?.to === undefined) return;
    const { axis, from, to } = this.brush, c = this.chart.context;
    c.fillStyle = css("--accent");
    c.globalAlpha = 0.3;
    c.fillRect(axis.x - 8, Math.min(from, to), 16, Math.abs(to - from));
    c.globalAlpha = 1;
  }

  down(event) {
    const [x, y] = this.chart.place(event);
    const axis = this.axes.find((one) => Math.abs(one.x - x) < 14);
    if (axis) this.brush = { axis, from: y };
  }

  move(event) {
    const [x, y] = this.chart.place(event);
    this.chart.canvas.style.cursor = this.axes.some((one) => Math.abs(one.x - x) < 14) ? "ns-resize" : "";
    if (!this.brush) return;
    this.brush.to = y;
    this.chart.follow();
  }

  up() {
    const brush = this.brush;
    this.brush = null;
    if (brush?.to === undefined) return;
    this.chart.follow();
    if (Math.abs(brush.to - brush.from) < 4) return;
    const [low, high] = [brush.axis.scale.of(Math.max(brush.from, brush.to)), brush.axis.scale.of(Math.min(brush.from, brush.to))];
    const { key, choices } = brush.axis, name = quoted(key);
    if (!choices) return this.filterBy(key, `${name}>=${short(low)} ${name}<=${short(high)}`);
    const some = choices.filter((_, place) => place >= low && place <= high).map((one) => quoted(String(one)));
    if (some.length) this.filterBy(key, `${name}:${some.join(",")}`);
  }
}

const quoted = (word) => (/^[^\s"!:=~<>,-][^\s"!:=~<>,]*$/.test(word) ? word : `"${word.replace(/[\\"]/g, "\\$&")}"`);
