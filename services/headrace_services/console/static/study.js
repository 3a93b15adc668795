// The pictures of a study: one set of trials, one filter, three ways to look at them.
import { Study } from "./columns.js";
import { bar, choice, short } from "./chart.js";
import { Curves } from "./curves.js";
import { filter, loaded, onChange, onGo } from "./page.js";
import { Parallel } from "./parallel.js";
import { Scatter, ranks, valueOf } from "./scatter.js";
import { Slices } from "./slices.js";

const { src, trial, metric, goal, rungs, best } = document.getElementById("curves").dataset;
const open = (number, event) => (event?.ctrlKey || event?.metaKey ? window.open(trial + number) : location.assign(trial + number));

/** Replaces the terms of a key in the filter. */
function filterBy(key, terms) {
  const bare = key.startsWith("param.") ? key.slice(6) : key;
  const mine = (term) => [key, bare, `"${key}"`].some((name) => [">", "<", ":", "="].some((operator) => term.startsWith(name + operator)));
  const kept = (filter().match(/(?:[^\s"]|"(?:[^"\\]|\\.)*")+/g) ?? []).filter((term) => !mine(term));
  const input = document.getElementById("q");
  input.value = [...kept, terms].join(" ");
  input.form.requestSubmit();
}

const curves = new Curves(document.getElementById("curves"), { metric, rungs: rungs.split(",").map(Number), best: best === "" ? null : Number(best), open });
const parallel = new Parallel(document.getElementById("parallel"), { metric, goal, filterBy });
const slices = new Slices(document.getElementById("slices"), { metric, open });

// Two parameters, coloured by the score.
const pairElement = document.getElementById("pair");
const pair = pairElement && new Scatter(pairElement, { title: "Two parameters and the score; the table has the values", open });
const pairBar = pairElement && bar(pairElement), chosen = [0, 1], fills = [];
let last = { all: [], params: [] };
function showPair() {
  const { all, params } = last;
  const two = chosen.map((place) => Math.min(place, params.length - 1));
  if (!pair || params.length < 2) return;
  if (!fills.length) for (const n of [0, 1]) fills.push(choice(pairBar, n ? "Vertical axis" : "Horizontal axis", [], "", (name) => {
    chosen[n] = last.params.findIndex((one) => one.name === name);
    showPair();
  }));
  fills.forEach((fill, n) => fill(params.map((one) => one.name), params[two[n]].name));
  const rank = ranks(all, goal);
  pair.show(two.map((place) => params[place]), all.filter((one) => rank.has(one.number)).map((one) => {
    const [x, y] = two.map((place) => one.params[place]);
    const text = `trial ${one.number}: ${short(one.score)}\n${two.map((place) => `${params[place].name} ${valueOf(params[place], one.params[place])}`).join("\n")}`;
    return { number: one.number, x, y, shade: rank.get(one.number), marked: rank.get(one.number) === 0, text };
  }));
}

// The first two objectives, with the Pareto front.
const frontElement = document.getElementById("front");
const front = frontElement && new Scatter(frontElement, { title: "The first two objectives; the front is listed below", open });
function showFront(all) {
  const names = JSON.parse(frontElement.dataset.metrics).slice(0, 2);
  const on = new Set([...document.querySelectorAll("#on-front a")].map((one) => Number(one.textContent)));
  const final = (one, name) => (one.metrics[name] ?? []).findLast(Number.isFinite) ?? NaN;
  front.show(names.map((name) => ({ name })), all.filter(({ outcome }) => outcome !== "infeasible").map((one) => {
    const [x, y] = names.map((name) => final(one, name));
    return { number: one.number, x, y, marked: on.has(one.number), text: `trial ${one.number}${on.has(one.number) ? ", on the front" : ""}\n${names[0]} ${short(x)}\n${names[1]} ${short(y)}` };
  }));
}

const study = new Study(src, async () => {
  await loaded();
  const { trials: all, metrics, params } = study;
  curves.show(all, metrics);
  parallel.show(all, params);
  slices.show(all, params);
  last = { all, params };
  showPair();
  if (front) showFront(all);
});

study.load(filter());
onGo(() => study.query !== filter() && study.load(filter()));

// Changes are gathered while a request is under way, so that a fast study makes no queue.
let numbers = new Set(), all = false, busy = false;
onChange(async ({ trials }) => {
  if (trials) trials.forEach((number) => numbers.add(number));
  else all = true;
  if (busy || document.hidden) return;
  busy = true;
  while (all || numbers.size) {
    const some = all || numbers.size > 64 ? null : [...numbers];
    numbers = new Set();
    all = false;
    await study.update(some);
  }
  busy = false;
});
document.addEventListener("visibilitychange", () => !document.hidden && (all || numbers.size) && document.dispatchEvent(new CustomEvent("headrace:change", { detail: { trials: [] } })));

