// The metrics of one trial, a chart for each.
import { Study } from "./columns.js";
import { Curves } from "./curves.js";
import { onChange } from "./page.js";

const element = document.getElementById("metrics");
const rungs = element.dataset.rungs.split(",").map(Number);
const grid = Object.assign(document.createElement("div"), { className: "grid wider" });
const charts = new Map(); // metric -> Curves
element.append(grid);

const study = new Study(element.dataset.src, ({ trials, metrics }) => {
  if (!charts.size) grid.textContent = metrics.length ? "" : "It has reported nothing.";
  for (const metric of metrics) {
    if (!charts.has(metric)) {
      const cell = Object.assign(document.createElement("div"), { className: "cell" });
      grid.append(cell);
      charts.set(metric, new Curves(cell, { metric, rungs, height: 220, choose: false }));
    }
    charts.get(metric).show(trials, metrics);
  }
});
const read = () => study.update([Number(element.dataset.number)]);
read();
onChange(read);
