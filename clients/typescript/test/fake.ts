/** A gRPC server on loopback that answers as a test says. */
import { createServer, type Http2Session } from "node:http2";
import type { AddressInfo } from "node:net";

import type { ConnectRouter } from "@connectrpc/connect";
import { connectNodeAdapter } from "@connectrpc/connect-node";

/** A server that runs. */
export interface Fake {
  readonly address: string;
  readonly port: number;
  /** Cuts every connection. */
  cut(): void;
  close(): Promise<void>;
}

/** Serves until it is closed. */
export async function serve(routes: (router: ConnectRouter) => void, port = 0): Promise<Fake> {
  const sessions = new Set<Http2Session>();
  const server = createServer(connectNodeAdapter({ routes }));
  server.on("session", (session) => {
    sessions.add(session);
    session.on("error", () => undefined);
    session.on("close", () => sessions.delete(session));
  });
  await new Promise<void>((resolve) => server.listen(port, "127.0.0.1", resolve));
  const bound = (server.address() as AddressInfo).port;
  const cut = (): void => sessions.forEach((session) => session.destroy());
  const close = async (): Promise<void> => {
    const closed = new Promise<void>((resolve) => server.close(() => resolve()));
    cut();
    await closed;
  };
  return { address: `127.0.0.1:${bound}`, port: bound, cut, close };
}
