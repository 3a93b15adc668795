// A shared worker: one stream of a study for all tabs, as a browser opens six connections to a host.
const streams = new Map(); // URL -> {source, ports, wait}

const FIRST_WAIT_MS = 2000, LONGEST_WAIT_MS = 30000;

self.onconnect = ({ ports: [port] }) => {
  let url;
  port.onmessage = ({ data }) => {
    if (data.close) return leave(url, port);
    url = data.url;
    join(url, port);
  };
};

function join(url, port) {
  if (!streams.has(url)) {
    streams.set(url, { ports: new Set(), wait: FIRST_WAIT_MS });
    open(url);
  }
  const { ports, cursor } = streams.get(url);
  ports.add(port);
  if (cursor) port.postMessage({ cursor, trials: null, ended: false, error: "" }); // the page may be older or newer
}

function open(url) {
  const stream = streams.get(url);
  if (!stream) return; // all tabs left meanwhile
  const source = (stream.source = new EventSource(url));
  source.onmessage = ({ data }) => {
    const message = JSON.parse(data);
    tell(stream, message);
    stream.cursor = message.cursor;
    if (!message.ended) return; // after an error the browser connects again by itself
    source.close(); // a study that has ended may be extended
    setTimeout(() => streams.get(url) === stream && open(url), LONGEST_WAIT_MS);
  };
  source.onopen = () => {
    stream.wait = FIRST_WAIT_MS;
    tell(stream, { link: true });
  };
  source.onerror = () => {
    // A browser gives up on a stream that was refused: the scheduler may be away, the study deleted, the session over.
    const refused = source.readyState === EventSource.CLOSED;
    tell(stream, { lost: true, refused });
    if (!refused) return;
    setTimeout(() => streams.get(url) === stream && open(url), stream.wait);
    stream.wait = Math.min(LONGEST_WAIT_MS, 2 * stream.wait);
  };
}

function leave(url, port) {
  const stream = streams.get(url);
  stream?.ports.delete(port);
  if (stream && !stream.ports.size) stop(url);
}

function stop(url) {
  streams.get(url)?.source.close();
  streams.delete(url);
}

const tell = (stream, message) => stream.ports.forEach((port) => port.postMessage(message));
