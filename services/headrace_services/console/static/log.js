// A log that is followed. Only its last megabyte is kept on the page; what is searched for is selected in that.
const pre = document.getElementById("log"), state = document.getElementById("log-state");
const MOST = 1 << 20;
const decoder = new TextDecoder();
let after = "", text = "", cut = false;

async function read() {
  const answer = await fetch(`${pre.dataset.src}?after=${encodeURIComponent(after)}`);
  if (!answer.ok) throw new Error((await answer.text()).slice(0, 300));
  const bytes = new Uint8Array(await answer.arrayBuffer());
  after = answer.headers.get("x-next");
  return { more: bytes.length > 0, complete: answer.headers.get("x-complete") === "1", part: decoder.decode(bytes, { stream: true }) };
}

function show(part) {
  const atEnd = pre.scrollHeight - pre.scrollTop - pre.clientHeight < 30;
  text += part;
  if (text.length > MOST) {
    text = text.slice(text.indexOf("\n", text.length - MOST) + 1);
    cut = true;
  }
  pre.textContent = text;
  if (atEnd) pre.scrollTop = pre.scrollHeight;
}

async function follow() {
  for (let read_ = 0; ; ) {
    try {
      const { more, complete, part } = await read();
      if (part) show(part);
      read_ += part.length;
      state.textContent = complete ? "The trial has ended." : cut ? "Only the last part is shown; `headrace logs` prints all." : "";
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
  const lower = text.toLowerCase(), count = lower.split(word.toLowerCase()).length - 1;
  place = lower.indexOf(word.toLowerCase(), from);
  if (place < 0 && from) place = lower.indexOf(word.toLowerCase());
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
