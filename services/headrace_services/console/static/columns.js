// Trials and their curves, as the server packs them (columns.py).

/** Reads packed columns: a list of trials, each with views into them. */
export async function fetchTrials(url, signal) {
  const answer = await fetch(url, { signal });
  if (!answer.ok) throw new Error(`${answer.status}`);
  const bytes = await answer.arrayBuffer();
  const length = new DataView(bytes).getUint32(0, true);
  const head = JSON.parse(new TextDecoder().decode(new Uint8Array(bytes, 4, length)));
  const columns = {};
  let at = 4 + length;
  for (const [name, kind, size] of head.columns) {
    columns[name] = kind === "f32" ? new Float32Array(bytes, at, size) : new Int32Array(bytes, at, size);
    at += Math.ceil((4 * size) / 8) * 8;
  }
  const trials = head.outcomes.map((outcome, place) => {
    const [from, to] = [columns.starts[place], columns.starts[place + 1]];
    const metrics = Object.create(null); // a metric may be called "constructor"
    for (const name of head.metrics) metrics[name] = columns[`metric:${name}`].subarray(from, to);
    return {
      number: columns.numbers[place],
      outcome,
      score: columns.scores[place],
      steps: columns.steps.subarray(from, to),
      times: columns.times.subarray(from, to),
      metrics,
      params: head.params.map(({ name }) => columns[`param:${name}`][place]),
    };
  });
  return { trials, params: head.params, metrics: head.metrics };
}

/** A study's trials, kept up to date; `draw` is called after each change. */
export class Study {
  constructor(src, draw) {
    this.src = src;
    this.draw = draw;
    this.trials = new Map();
    this.params = [];
    this.metrics = [];
    this.query = "";
    this.waiting = null;
  }

  /** Reads everything that a filter selects. */
  async load(query = "") {
    this.query = query;
    this.abort?.abort();
    this.abort = new AbortController();
    const found = await this.fetch(`q=${encodeURIComponent(query)}`, this.abort.signal);
    if (!found) return;
    this.trials = new Map(found.trials.map((one) => [one.number, one]));
    this.take(found);
  }

  /** Reads the trials that changed; null means everything. */
  async update(numbers) {
    if (!numbers) return this.load(this.query);
    if (!numbers.length) return;
    const found = await this.fetch(`q=${encodeURIComponent(this.query)}&numbers=${numbers}`);
    if (!found) return;
    for (const number of numbers) this.trials.delete(number);
    for (const one of found.trials) this.trials.set(one.number, one);
    this.take(found);
  }

  async fetch(query, signal) {
    try {
      return await fetchTrials(`${this.src}${this.src.includes("?") ? "&" : "?"}${query}`, signal);
    } catch (error) {
      if (error.name !== "AbortError") console.warn(`${this.src}: ${error.message}`);
      return null;
    }
  }

  take(found) {
    this.params = found.params;
    this.metrics = [...new Set([...this.metrics, ...found.metrics])].sort();
    this.draw(this);
  }
}
