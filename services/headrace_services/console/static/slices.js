// Slices: for each parameter, its value and the trial's score.
import { Chart, Scale, colorOf, extent, short } from "./chart.js";

const MOST = 12;

export class Slices {
  constructor(element, { metric, open }) {
    Object.assign(this, { metric, open, trials: [], charts: [] });
    this.grid = Object.assign(document.createElement("div"), { className: "grid" });
    element.append(this.grid);
  }

  show(trials, params) {
    this.trials = trials.filter((one) => Number.isFinite(one.score));
    while (this.charts.length < Math.min(params.length, MOST)) this.add(this.charts.length);
    this.params = params;
    this.charts.forEach((chart, place) => {
      chart.name.textContent = params[place]?.name ?? "";
      chart.redraw();
    });
  }

  add(place) {
    const cell = document.createElement("div");
    this.grid.append(cell);
    const chart = new Chart(cell, { height: 180, title: "A parameter and the score; the table has the values", draw: () => this.draw(chart, place), margin: { left: 52, right: 8, top: 6, bottom: 26 } });
    cell.className = "cell";
    chart.name = Object.assign(document.createElement("strong"), { textContent: "" });
    cell.prepend(chart.name);
    chart.canvas.addEventListener("pointermove", (event) => this.point(chart, place, chart.place(event)));
    chart.canvas.addEventListener("pointerleave", () => chart.say(""));
    chart.canvas.addEventListener("click", (event) => chart.near && this.open(chart.near.number, event));
    this.charts.push(chart);
  }

  draw(chart, place) {
    const param = this.params[place], at = chart.box, c = chart.context;
    if (!param) return;
    const span = param.choices ? [-0.5, param.choices.length - 0.5] : extent([this.trials.map((one) => one.params[place])], param.log);
    chart.sx = new Scale(span, [at.left + 5, at.right - 5], param.log);
    chart.sy = new Scale(extent([this.trials.map((one) => one.score)]), [at.bottom - 4, at.top + 4]);
    chart.axes(chart.sx, chart.sy, "", "", { choices: param.choices, whole: param.whole, empty: !this.trials.some((one) => Number.isFinite(one.params[place])) });
    c.globalAlpha = this.trials.length > 500 ? 0.4 : 0.8;
    let outcome = null;
    for (const one of this.trials) {
      if (!Number.isFinite(one.params[place])) continue;
      if (one.outcome !== outcome) c.fillStyle = colorOf((outcome = one.outcome));
      c.fillRect(chart.sx.at(one.params[place]) - 2, chart.sy.at(one.score) - 2, 4, 4);
    }
    c.globalAlpha = 1;
  }

  point(chart, place, [x, y]) {
    let least = 200;
    chart.near = null;
    for (const one of this.trials) {
      const dx = chart.sx.at(one.params[place]) - x, dy = chart.sy.at(one.score) - y, square = dx * dx + dy * dy;
      if (square < least) [chart.near, least] = [one, square];
    }
    const { near } = chart, param = this.params[place];
    const value = near && (param.choices ? param.choices[near.params[place]] : short(near.params[place]));
    chart.say(near ? `trial ${near.number}\n${param.name} ${value}: ${short(near.score)}` : "", x, y);
  }
}
