/** One replica's HTTP/2 connection, opened when it is first used. */
import { connect as connectSocket } from "node:net";

import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import type { Tls } from "./target.js";

/** A connection and what is called over it. */
export interface Channel {
  readonly transport: Transport;
  close(): void;
}

/** Over a network a connection may be dead without a word. On this machine it is not, and gRPC's servers dislike pings. */
const PINGS = { pingIntervalMs: 30_000, pingTimeoutMs: 10_000 };

/** The channel to a replica. */
export function openChannel(replica: string, tls?: Tls): Channel {
  const socket = replica.startsWith("unix:") ? replica.slice("unix:".length) : undefined;
  const baseUrl = `${tls ? "https" : "http"}://${socket === undefined ? replica : "localhost"}`;
  const options = {
    ...(tls?.ca === undefined ? {} : { ca: Buffer.from(tls.ca) }),
    ...(socket === undefined ? {} : { createConnection: () => connectSocket(socket) }),
  };
  const sessionManager = new Http2SessionManager(baseUrl, socket === undefined ? PINGS : {}, options);
  const transport = createGrpcTransport({ baseUrl, sessionManager });
  return { transport, close: () => sessionManager.abort() };
}
