// The metrics of one trial, a chart for each.
import { Study } from "./columns.js";
import { Curves } from "./curves.js";
import { onChange } from "./page.js";

const element = document.getElementById("metrics");
const rungs = element.dataset.rungs.split(",").map(Number);
let curves = null;
const study = new Study(element.dataset.src, ({ trials, metrics }) => {
  curves ??= new Curves(element, { metric: metrics[0] ?? "", rungs });
  curves.show([...trials.values()], metrics);
});
study.load();
onChange(() => study.load());
