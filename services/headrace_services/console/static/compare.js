// The best value so far of several studies, by time or by steps spent.
import { Chart, Scale, bar, choice, extent, short } from "./chart.js";
import { fetchTrials } from "./columns.js";

const element = document.getElementById("best");
const COLORS = ["#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#8d99a5", "#b3a300"];

if (element) {
  const better = element.dataset.goal === "maximize" ? (a, b) => a > b : (a, b) => a < b;
  const links = [...element.querySelectorAll("a[data-src]")];
  links.forEach((link, place) => {
    const mark = Object.assign(document.createElement("span"), { textContent: "■ ", ariaHidden: "true" });
    mark.style.color = COLORS[place];
    link.before(mark);
  });
  let x = "time", lines = [];
  choice(bar(element), "Horizontal axis", ["time", "reports"], x, (name) => { x = name; chart.redraw(); });
  const chart = new Chart(element, { title: "Best value so far; the table has the final ones", draw });

  /** The points at which the best value of a study improved. */
  const improvements = ({ trials }) => {
    const all = trials.flatMap((one) => [...(one.metrics[element.dataset.metric] ?? [])].map((value, i) => [one.times[i], value]));
    all.sort((a, b) => a[0] - b[0]);
    const found = [];
    let best = NaN;
    all.forEach(([time, value], count) => {
      if (Number.isFinite(value) && (Number.isNaN(best) || better(value, best))) found.push({ time, reports: count + 1, value: (best = value) });
    });
    if (found.length) found.push({ time: all.at(-1)[0], reports: all.length, value: best });
    return found;
  };

  function draw() {
    const at = chart.box, c = chart.context;
    const sx = new Scale(extent(lines.map((line) => line.map((one) => one[x]))), [at.left, at.right]);
    const sy = new Scale(extent(lines.map((line) => line.map((one) => one.value))), [at.bottom, at.top]);
    chart.axes(sx, sy, x === "time" ? "seconds" : "reports", element.dataset.metric);
    lines.forEach((line, place) => {
      c.strokeStyle = COLORS[place];
      c.lineWidth = 2;
      c.beginPath();
      line.forEach((one, i) => {
        if (i) c.lineTo(sx.at(one[x]), sy.at(line[i - 1].value));
        c[i ? "lineTo" : "moveTo"](sx.at(one[x]), sy.at(one.value));
      });
      c.stroke();
      if (line.length) {
        c.fillStyle = COLORS[place];
        c.textAlign = "right";
        c.textBaseline = "bottom";
        c.fillText(short(line.at(-1).value), sx.at(line.at(-1)[x]), sy.at(line.at(-1).value) - 4);
      }
    });
  }

  lines = await Promise.all(links.map(async (link) => improvements(await fetchTrials(link.dataset.src))));
  chart.redraw();
}
