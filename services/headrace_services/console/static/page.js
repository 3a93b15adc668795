// Every page: parts that change are fetched again and swapped, without losing focus, scroll position or open details.
// Without this script, links and forms work as they are.
const main = document.querySelector("main");
const link = document.getElementById("link");
let dirty = false, fetching = null;
let at = Number(main.dataset.cursor); // the study's, as this page shows it
const LOOK_AGAIN_MS = 30000, LONGEST_ANSWER_MS = 60000;
const CAN_FOCUS = "a, button, input, summary";

export const root = document.body.dataset.root;
export const onChange = (run) => document.addEventListener("headrace:change", ({ detail }) => run(detail));
export const onGo = (run) => document.addEventListener("headrace:go", run);
export const filter = () => new URLSearchParams(location.search).get("q") ?? "";

/** Fetches the page at an address and swaps its parts. */
export const load = (url) => (loading = read(url));
let loading = Promise.resolve();
/** When what was last asked for is on the screen: pictures come after it, as many trials take longer than a frame. */
export async function loaded() {
  for (let last; last !== loading;) await (last = loading);
  await new Promise((shown) => requestAnimationFrame(() => setTimeout(shown)));
}

async function read(url) {
  fetching?.abort();
  fetching = new AbortController();
  try {
    const answer = await fetch(url, { headers: { accept: "text/html" }, signal: AbortSignal.any([fetching.signal, AbortSignal.timeout(LONGEST_ANSWER_MS)]) });
    if (answer.redirected && new URL(answer.url).pathname.endsWith("/login")) return location.assign(answer.url);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    link.textContent = answer.status >= 500 ? "The scheduler cannot be reached. Trying again." : "";
    swap(page); // may say why the page is gone
    return answer.ok;
  } catch (error) {
    if (error.name !== "AbortError") link.textContent = "The console cannot be reached. Trying again.";
    return false;
  }
}

function swap(page) {
  const now = document.querySelectorAll("[data-part]");
  const then = page.querySelectorAll("[data-part]");
  if (now.length && then.length && (now[0].id === "error") !== (then[0].id === "error")) {
    if (then[0].id !== "error") location.reload();
    else link.textContent = then[0].textContent.trim();
    return;
  }
  for (const part of now) {
    const fresh = page.getElementById(part.id);
    if (!fresh || fresh.innerHTML === part.dataset.was) continue;
    const open = [...part.querySelectorAll("details[open]")].map((one) => one.id);
    const checked = part.id === "columns" ? [] : [...part.querySelectorAll("input:checked")].map((one) => one.id);
    const focus = part.contains(document.activeElement) ? document.activeElement : null;
    const at = focus && [...part.querySelectorAll(CAN_FOCUS)].indexOf(focus);
    const left = part.scrollLeft;
    const was = fresh.innerHTML;
    part.replaceChildren(...fresh.childNodes);
    part.dataset.was = was;
    for (const id of open) part.querySelector(`[id="${CSS.escape(id)}"]`)?.setAttribute("open", "");
    for (const id of checked) if (document.getElementById(id)) document.getElementById(id).checked = true;
    if (focus) again(part, focus, at)?.focus({ preventScroll: true });
    part.scrollLeft = left;
  }
}

/** The element that had the focus: the one with its id, or a link with its address; otherwise the one at its place. */
function again(part, was, at) {
  const here = [...part.querySelectorAll(CAN_FOCUS)], href = was.getAttribute("href");
  const same = here.filter((one) => (was.id ? one.id === was.id : href !== null && one.getAttribute("href") === href));
  return same.includes(here[at]) ? here[at] : same[0] ?? here[at];
}

/** Shows another filter, order or page of this page. */
export async function go(url) {
  history.pushState(null, "", url);
  document.dispatchEvent(new CustomEvent("headrace:go"));
  await load(location.href);
}

document.addEventListener("click", (event) => {
  const a = event.target.closest("a[data-go]");
  if (!a || event.metaKey || event.ctrlKey || event.shiftKey) return;
  event.preventDefault();
  if (a.closest(".filter")) document.getElementById("q").value = new URL(a.href).searchParams.get("q") ?? "";
  go(a.href);
});
document.addEventListener("submit", (event) => {
  if (!event.target.matches("form[data-go]")) return;
  event.preventDefault();
  // Hidden fields are for browsers without scripts: the address knows better, as links change it too.
  const shown = new Set([...event.target.elements].filter(({ type }) => type !== "hidden").map(({ name }) => name));
  const params = new URLSearchParams(location.search);
  for (const name of ["page", ...shown]) params.delete(name);
  for (const [name, value] of new FormData(event.target)) if (shown.has(name) && value) params.append(name, value);
  go(`?${params}`);
});
window.addEventListener("popstate", () => {
  const q = document.getElementById("q");
  if (q) q.value = filter();
  document.dispatchEvent(new CustomEvent("headrace:go"));
  load(location.href);
});

// ---- live

function changed(detail) {
  if (main.dataset.only && detail.trials && !detail.trials.includes(Number(main.dataset.only)) && !detail.ended) return;
  document.dispatchEvent(new CustomEvent("headrace:change", { detail }));
  if (document.hidden) dirty = true;
  else load(location.href);
}

function follow(url) {
  const hear = (message) => {
    if (message.lost) link.textContent = "The connection is lost. Trying again.";
    if (message.refused) load(location.href); // the page says why, or asks for a token
    if (message.lost) return;
    if (message.link) link.textContent = "";
    else if (message.error) link.textContent = message.error;
    else if (message.cursor !== at) changed(message);
    if (message.cursor) at = message.cursor;
  };
  if (window.SharedWorker) {
    const worker = new SharedWorker(`${root}/static/stream.js`);
    worker.port.onmessage = ({ data }) => hear(data);
    worker.port.start();
    worker.port.postMessage({ url });
    window.addEventListener("pagehide", () => worker.port.postMessage({ close: true }));
    window.addEventListener("pageshow", ({ persisted }) => persisted && worker.port.postMessage({ url }));
  } else {
    const source = new EventSource(url);
    source.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      hear(message);
      if (!message.ended) return;
      source.close();
      setTimeout(follow, LOOK_AGAIN_MS, url);
    };
    source.onerror = () => {
      const refused = source.readyState === EventSource.CLOSED;
      hear({ lost: true, refused });
      if (refused) setTimeout(follow, 5000, url);
    };
    source.onopen = () => hear({ link: true });
  }
}

function poll(seconds) {
  setInterval(() => !document.hidden && load(location.href), 1000 * seconds);
}

document.addEventListener("visibilitychange", () => {
  if (document.hidden || !(dirty || main.dataset.poll)) return;
  dirty = false;
  load(location.href);
});

if (main.dataset.live) follow(main.dataset.live);
if (main.dataset.poll) poll(Number(main.dataset.poll));

for (const part of document.querySelectorAll("[data-load]"))
  new IntersectionObserver(async ([seen], observer) => {
    if (!seen.isIntersecting) return;
    observer.disconnect();
    const answer = await fetch(part.dataset.load);
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    part.replaceChildren(...(page.getElementById(part.id) ?? page.querySelector("main")).childNodes);
  }).observe(part);
