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

/** A study's trials, kept up to date; `draw` is called after each change.
 *
 *  `known` has every trial that was read. Another filter then asks only which numbers match; curves are read for
 *  those that are missing. */
export class Study {
  constructor(src, draw) {
    this.src = src;
    this.draw = draw;
    this.known = new Map();
    this.matching = []; // numbers, in order
    this.params = [];
    this.metrics = [];
    this.query = "";
  }

  /** The trials that match the filter. */
  get trials() {
    return this.matching.map((number) => this.known.get(number)).filter(Boolean);
  }

  /** Shows what a filter selects. */
  async load(query = "", anew = false) {
    this.query = query;
    this.abort?.abort();
    this.abort = new AbortController();
    const { signal } = this.abort;
    const q = `q=${encodeURIComponent(query)}`;
    const matching = this.known.size && !anew ? await this.numbers(q, signal) : null;
    if (matching?.every((number) => this.known.has(number))) {
      this.matching = matching;
      return this.draw(this);
    }
    const found = await this.fetch(q, signal);
    if (!found || query !== this.query) return;
    if (anew) this.known.clear();
    this.take(found, matching ?? found.trials.map(({ number }) => number));
  }

  /** Reads the trials that changed; null means everything. */
  async update(numbers) {
    if (!numbers) return this.load(this.query, true);
    if (!numbers.length) return;
    const { query } = this;
    const some = `numbers=${numbers}`;
    const [found, now] = await Promise.all([
      this.fetch(some),
      query ? this.numbers(`q=${encodeURIComponent(query)}&${some}`) : numbers,
    ]);
    if (!found || !now) return;
    const changed = new Set(numbers);
    const matching = [...this.matching.filter((number) => !changed.has(number)), ...now].sort((a, b) => a - b);
    for (const number of numbers) this.known.delete(number);
    this.take(found, query === this.query ? matching : this.matching);
    if (query !== this.query) await this.load(this.query); // another filter was chosen meanwhile
  }

  fetch(query, signal) {
    return this.ask(() => fetchTrials(`${this.src}/curves.bin?${query}`, signal));
  }

  /** Which trials match; null if that cannot be asked. */
  numbers(query, signal) {
    return this.ask(async () => {
      const answer = await fetch(`${this.src}/numbers.json?${query}`, { signal });
      if (!answer.ok) throw new Error(`${answer.status}`);
      return answer.json();
    });
  }

  async ask(run) {
    try {
      return await run();
    } catch (error) {
      if (error.name !== "AbortError") console.warn(`${this.src}: ${error.message}`);
      return null;
    }
  }

  take(found, matching) {
    for (const one of found.trials) this.known.set(one.number, one);
    this.matching = matching;
    this.params = found.params;
    this.metrics = [...new Set([...this.metrics, ...found.metrics])].sort();
    this.draw(this);
  }
}
