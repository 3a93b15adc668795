// A scatter of trials over two values: two parameters coloured by the score, or two objectives with the Pareto front.
import { Chart, Scale, css, extent, short } from "./chart.js";

const SHADES = 8;

export class Scatter {
  /** `pick(trial)` is what a point shows: its place [x, y], `shade` from 0 (best) to 1, or `marked`. */
  constructor(element, { title, open }) {
    Object.assign(this, { points: [], axes: null, open });
    this.chart = new Chart(element, { title, height: 300, draw: () => this.draw() });
    const { canvas } = this.chart;
    canvas.addEventListener("pointermove", (event) => this.point(...this.chart.place(event)));
    canvas.addEventListener("pointerleave", () => this.chart.say(""));
    canvas.addEventListener("click", (event) => this.near && this.open(this.near.number, event));
  }

  /** `axes` are two of {name, log, choices, whole}; points are {number, x, y, text, shade, marked}. */
  show(axes, points) {
    this.axes = axes;
    this.points = points.filter((one) => Number.isFinite(one.x) && Number.isFinite(one.y));
    this.points.sort((a, b) => Boolean(a.marked) - Boolean(b.marked) || (b.shade ?? 0) - (a.shade ?? 0)); // the best on top
    this.chart.redraw();
  }

  draw() {
    if (!this.axes) return;
    const { chart, points } = this, at = chart.box, c = chart.context, [across, up] = this.axes;
    const span = (axis, values) => (axis.choices ? [-0.5, axis.choices.length - 0.5] : extent([values], axis.log));
    this.sx = new Scale(span(across, points.map((one) => one.x)), [at.left + 6, at.right - 6], across.log);
    this.sy = new Scale(span(up, points.map((one) => one.y)), [at.bottom - 6, at.top + 6], up.log);
    chart.axes(this.sx, this.sy, across.name, up.name, { choices: across.choices, whole: across.whole, names: up.choices, empty: !points.some((one) => !(across.log && one.x <= 0) && !(up.log && one.y <= 0)) });
    const [best, completed] = [css("--best"), css("--completed")];
    for (const one of points) {
      c.fillStyle = one.marked ? best : completed;
      c.globalAlpha = one.shade === undefined ? 0.75 : 1 - 0.85 * (Math.floor(one.shade * SHADES) / SHADES);
      c.beginPath();
      c.arc(this.sx.at(one.x), this.sy.at(one.y), one.marked ? 5 : 4, 0, 7);
      c.fill();
    }
    c.globalAlpha = 1;
  }

  point(x, y) {
    let least = 200;
    this.near = null;
    for (const one of this.points) {
      const square = (this.sx.at(one.x) - x) ** 2 + (this.sy.at(one.y) - y) ** 2;
      if (square < least) [this.near, least] = [one, square];
    }
    this.chart.canvas.style.cursor = this.near ? "pointer" : "";
    this.chart.say(this.near?.text ?? "", x, y);
  }
}

/** The ranks of scores from 0 (best) to 1. */
export function ranks(trials, goal) {
  const sign = goal === "maximize" ? -1 : 1;
  const sorted = trials.filter((one) => Number.isFinite(one.score)).sort((a, b) => sign * (a.score - b.score));
  return new Map(sorted.map((one, place) => [one.number, place / Math.max(1, sorted.length - 1)]));
}

/** The value of a parameter for people. */
export const valueOf = (param, value) => (param.choices ? param.choices[value] : short(value));
