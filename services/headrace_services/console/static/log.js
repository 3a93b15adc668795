// A log that is followed. Only its last megabyte is kept on the page; what is searched for is selected in that.
const pre = document.getElementById("log"), state = document.getElementById("log-state");
const MOST = 1 << 20;
const decoder = new TextDecoder();
let after = "", text = "", cut = false, read_bytes = 0;
let unshown = "", shown_at = -Infinity; // a long log arrives in thousands of parts

async function read() {
  const answer = await fetch(`${pre.dataset.src}?after=${encodeURIComponent(after)}`);
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
  const bytes = new Uint8Array(await answer.arrayBuffer());
  after = answer.headers.get("x-next");
  read_bytes += bytes.length;
  return { more: bytes.length > 0, complete: answer.headers.get("x-complete") === "1", part: decoder.decode(bytes, { stream: true }) };
}

function show(part) {
  const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 30;
  text += part;
  unshown = "";
  shown_at = performance.now();
  if (text.length > MOST) {
    const end = text.indexOf("\n", text.length - MOST); // a log may have no lines at all
    text = text.slice(end < 0 ? text.length - MOST : end + 1);
    cut = true;
  }
  pre.textContent = text;
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

async function follow() {
  for (;;) {
    try {
      const { more, complete, part } = await read();
      unshown += part;
      if (unshown.length > MOST) [unshown, cut] = [unshown.slice(-MOST), true];
      if (unshown && (!more || performance.now() - shown_at > 300)) show(unshown);
      state.textContent = complete ? "The trial has ended." : more && cut ? `Reading it; ${(read_bytes / 2 ** 20).toFixed(0)} MiB so far.` : cut ? "Only the last part is shown; `headrace logs` prints all." : "";
      if (complete && !more) return;
      if (!more) await new Promise((resume) => setTimeout(resume, document.hidden ? 10000 : 1500));
    } catch (error) {
      state.textContent = `The log cannot be read now: ${error.message}`;
      await new Promise((resume) => setTimeout(resume, 5000));
    }
  }
}

document.getElementById("find").addEventListener("input", ({ target }) => find(target.value, 0));
document.querySelector("form.filter").addEventListener("submit", (event) => {
  event.preventDefault();
  find(document.getElementById("find").value, place + 1);
});

let place = -1;
function find(word, from) {
  const found = document.getElementById("found");
  if (!word) return (found.textContent = "");
  // Letters such as İ have another length in lower case, so the text itself is searched.
  const places = [...text.matchAll(new RegExp(word.replace(/[.*+?^${}()|[\]\\]/g, "\\$&"), "gi"))].map(({ index }) => index);
  const count = places.length;
  place = places.find((one) => one >= from) ?? places[0] ?? -1;
  found.textContent = count ? `${count} found` : "nothing found";
  if (place < 0 || !pre.firstChild) return;
  const range = document.createRange();
  range.setStart(pre.firstChild, place);
  range.setEnd(pre.firstChild, place + word.length);
  getSelection().removeAllRanges();
  getSelection().addRange(range);
  const box = range.getBoundingClientRect(), outer = pre.getBoundingClientRect();
  pre.scrollTop += box.top - outer.top - pre.clientHeight / 2;
}

follow();
