/** One replica's HTTP/2 connection, opened on first use. */
import { connect as connectSocket } from "node:net";

import type { Transport } from "@connectrpc/connect";
import { createGrpcTransport, Http2SessionManager } from "@connectrpc/connect-node";

import type { Tls } from "./target.js";

/** A connection and the transport that uses it. */
export interface Channel {
  readonly transport: Transport;
  close(): void;
}

/** Over a network a connection may die silently. On this machine it does not, and gRPC servers dislike pings. */
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
