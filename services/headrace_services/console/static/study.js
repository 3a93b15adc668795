// The pictures of a study: one set of trials, one filter, three ways to look at them.
import { Study } from "./columns.js";
import { Curves } from "./curves.js";
import { filter, onChange, onGo } from "./page.js";
import { Parallel } from "./parallel.js";
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

const study = new Study(src, ({ trials, metrics, params }) => {
  const all = [...trials.values()];
  curves.show(all, metrics);
  parallel.show(all, params);
  slices.show(all, params);
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

