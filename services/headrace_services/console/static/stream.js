// A shared worker: one stream of a study for all tabs, as a browser opens six connections to a host.
const streams = new Map(); // URL -> {source, ports, last}

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
    const stream = { source: new EventSource(url), ports: new Set() };
    streams.set(url, stream);
    stream.source.onmessage = ({ data }) => {
      const message = JSON.parse(data);
      tell(stream, message);
      if (message.ended || message.error) stop(url);
    };
    stream.source.onopen = () => tell(stream, { link: true });
    stream.source.onerror = () => tell(stream, { link: stream.source.readyState !== EventSource.CLOSED && undefined, lost: true });
  }
  streams.get(url).ports.add(port);
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
