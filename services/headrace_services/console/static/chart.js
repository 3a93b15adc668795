// A canvas with axes: scales, ticks, colours of the page's theme, a tooltip, and zooming by dragging.

export const css = (name) => getComputedStyle(document.documentElement).getPropertyValue(name).trim();
export const colorOf = (outcome) =>
  css({ completed: "--completed", running: "--running", resumed: "--running", failed: "--failed" }[outcome] ?? "--paused");

export const short = (value) => {
  if (!Number.isFinite(value)) return Number.isNaN(value) ? "" : value > 0 ? "∞" : "-∞";
  const size = Math.abs(value);
  if (size !== 0 && (size < 1e-3 || size >= 1e5)) return value.toExponential(2).replace(/\.?0+e/, "e");
  return String(Number(value.toPrecision(4)));
};

export const cut = (name, letters) => (name.length > letters ? `${name.slice(0, letters - 1)}…` : name);

/** A linear or logarithmic scale from values to pixels. */
export class Scale {
  constructor([low, high], [from, to], log = false) {
    this.log = log && low > 0;
    if (!(low < high)) [low, high] = this.log ? [low / 2, low * 2] : [low - 0.5, low + 0.5];
    Object.assign(this, { low, high, from, to });
    const [a, b] = [this.raw(low), this.raw(high)];
    this.scale = (to - from) / (b - a);
    this.offset = from - a * this.scale;
  }
  raw(value) { return this.log ? Math.log(value) : value; }
  at(value) { return this.offset + this.raw(value) * this.scale; }
  of(pixel) { const raw = (pixel - this.offset) / this.scale; return this.log ? Math.exp(raw) : raw; }
  ticks(count = 6) {
    if (this.log) {
      const [a, b] = [Math.ceil(Math.log10(this.low) - 1e-9), Math.floor(Math.log10(this.high) + 1e-9)];
      const every = Math.max(1, Math.ceil((b - a + 1) / count));
      const found = [];
      for (let power = a; power <= b; power += every) found.push(10 ** power);
      if (found.length > 1) return found;
    }
    const rough = (this.high - this.low) / count, base = 10 ** Math.floor(Math.log10(rough));
    const step = [1, 2, 5, 10].map((n) => n * base).find((n) => n >= rough) ?? rough;
    const found = [];
    for (let n = Math.ceil(this.low / step); n * step <= this.high * (1 + 1e-12) && found.length < 50; n++) found.push(n * step);
    return found;
  }
}

/** The smallest and the largest finite value; positive ones alone for a logarithmic scale. */
export function extent(lists, log = false) {
  let low = Infinity, high = -Infinity;
  for (const list of lists) for (const value of list) {
    if (!Number.isFinite(value) || (log && value <= 0)) continue;
    if (value < low) low = value;
    if (value > high) high = value;
  }
  return low <= high ? [low, high] : [log ? 0.1 : 0, 1];
}

/** Draws when it is in sight or nearly so: with many trials, a picture takes longer than a frame to draw. */
export class Chart {
  /** `draw(chart)` draws inside; `over(chart)` draws what follows the pointer, on a layer of its own, so that a move
   *  does not draw everything again. `title` is what a screen reader says. */
  constructor(element, { height = 340, title, draw, over = null, margin = { left: 62, right: 12, top: 24, bottom: 40 } }) {
    Object.assign(this, { element, height, margin, seen: false });
    const layers = Object.assign(document.createElement("div"), { className: "layers" });
    this.layers = (over ? [draw, over] : [draw]).map((paint) => {
      const canvas = document.createElement("canvas");
      canvas.style.height = `${height}px`; // also before it is drawn
      layers.append(canvas);
      return { canvas, paint, context: canvas.getContext("2d"), stale: true };
    });
    this.canvas = this.layers[0].canvas;
    this.canvas.setAttribute("role", "img");
    this.canvas.setAttribute("aria-label", title);
    if (over) this.layers[1].canvas.setAttribute("aria-hidden", "true");
    this.tip = Object.assign(document.createElement("div"), { className: "tip" });
    element.append(layers, this.tip);
    new ResizeObserver(() => this.redraw()).observe(element);
    new IntersectionObserver((entries) => {
      this.seen = entries.at(-1).isIntersecting;
      this.ask();
    }, { rootMargin: "200px" }).observe(element);
    matchMedia("(prefers-color-scheme: dark)").addEventListener("change", () => this.redraw());
    window.addEventListener("beforeprint", () => this.paint());
  }

  redraw() {
    for (const layer of this.layers) layer.stale = true;
    this.ask();
  }

  /** Draws only what follows the pointer. */
  follow() {
    this.layers.at(-1).stale = true;
    this.ask();
  }

  /** Draws before the next frame, once however often it is asked. */
  ask() {
    if (this.seen) this.asked ??= requestAnimationFrame(() => this.paint());
  }

  paint() {
    this.asked = null;
    const ratio = devicePixelRatio || 1, width = this.element.clientWidth - 18;
    if (width <= 0) return;
    for (const layer of this.layers) {
      if (!layer.stale) continue;
      layer.stale = false;
      const { canvas, context } = layer;
      Object.assign(this, { width, context });
      const size = [Math.round(width * ratio), Math.round(this.height * ratio)];
      if (canvas.width !== size[0] || canvas.height !== size[1]) [canvas.width, canvas.height] = size; // which allocates it anew
      context.save();
      context.setTransform(ratio, 0, 0, ratio, 0, 0);
      context.font = "12px system-ui, sans-serif";
      context.clearRect(0, 0, width, this.height);
      layer.paint(this);
      context.restore();
    }
  }

  get box() {
    const { left, right, top, bottom } = this.margin;
    return { left, right: this.width - right, top, bottom: this.height - bottom };
  }

  /** `choices` names the values of the horizontal axis, `names` those of the vertical one; `whole` leaves out ticks between whole numbers.
   *  Where there is nothing to draw (`empty`), the picture says so, and its axes have no ticks. */
  axes(x, y, xLabel, yLabel, { at = this.box, choices = null, whole = false, names = null, empty = false } = {}) {
    const c = this.context;
    c.strokeStyle = css("--line");
    c.fillStyle = css("--muted");
    c.lineWidth = 1;
    if (empty) {
      c.textAlign = "center";
      c.textBaseline = "middle";
      c.fillText("No values", (at.left + at.right) / 2, (at.top + at.bottom) / 2);
      return this.line(at.left, at.bottom, at.right, at.bottom);
    }
    c.textAlign = "right";
    c.textBaseline = "middle";
    for (const tick of names ? names.keys() : y.ticks(5)) {
      const py = Math.round(y.at(tick)) + 0.5;
      this.line(at.left, py, at.right, py);
      c.fillText(names ? cut(names[tick], 8) : short(tick), at.left - 6, py);
    }
    c.textAlign = "center";
    c.textBaseline = "top";
    const room = Math.max(2, Math.floor((at.right - at.left) / 90));
    const ticks = choices ? choices.map((_, place) => place) : x.ticks(room).filter((tick) => !whole || Number.isInteger(tick));
    const letters = choices && Math.max(3, Math.floor((at.right - at.left) / choices.length / 7));
    for (const tick of ticks) c.fillText(choices ? cut(choices[tick], letters) : short(tick), x.at(tick), at.bottom + 5);
    c.textAlign = "right";
    c.fillText(xLabel, at.right, at.bottom + 22);
    c.textAlign = "left";
    c.textBaseline = "bottom";
    c.fillText(yLabel, at.left - 4, at.top - 7);
  }

  line(x1, y1, x2, y2) {
    this.context.beginPath();
    this.context.moveTo(x1, y1);
    this.context.lineTo(x2, y2);
    this.context.stroke();
  }

  clip(at = this.box) {
    this.context.save();
    this.context.beginPath();
    this.context.rect(at.left, at.top, at.right - at.left, at.bottom - at.top);
    this.context.clip();
  }

  /** The place of a pointer in the canvas. */
  place(event) {
    const box = this.canvas.getBoundingClientRect();
    return [event.clientX - box.left, event.clientY - box.top];
  }

  say(text, x = 0, y = 0) {
    this.tip.textContent = text;
    this.tip.style.left = `${Math.min(x + 18, this.width - 180)}px`;
    this.tip.style.top = `${y + 24}px`;
  }
}

/** Says which colour stands for which outcome, for those that there are. */
export function legend(row, outcomes) {
  const kinds = new Map(); // one entry for outcomes of the same colour
  for (const one of outcomes) kinds.set(colorOf(one), (kinds.get(colorOf(one)) ?? new Set()).add(one.replace("_", " ")));
  row.replaceChildren(...[...kinds.values()].map((names) => {
    const entry = document.createElement("span"), mark = document.createElement("span");
    mark.className = `state ${[...names][0].replace(" ", "_")}`;
    mark.textContent = "■ ";
    entry.append(mark, [...names].sort().join(", "));
    return entry;
  }));
}

/** A row of controls above a chart. */
export function bar(element) {
  const row = Object.assign(document.createElement("div"), { className: "bar" });
  element.prepend(row);
  return row;
}

export function choice(row, label, names, chosen, change) {
  const select = document.createElement("select");
  select.setAttribute("aria-label", label);
  const fill = (list, value) => {
    const same = list.length === select.options.length && list.every((name, place) => select.options[place].value === name);
    if (same) select.value = value; // an open list stays open while a study changes
    else select.replaceChildren(...list.map((name) => new Option(name, name, false, name === value)));
  };
  fill(names, chosen);
  select.addEventListener("change", () => change(select.value));
  row.append(select);
  return fill;
}
