/**
 * Calls to one kind of server: over a route of replicas, with deadlines, retries and the caller's signal.
 *
 * Everything thrown here is a HeadraceError.
 */
import { setMaxListeners } from "node:events";
import { setTimeout as sleep } from "node:timers/promises";

import type { DescMethodServerStreaming, DescMethodUnary, DescMessage, MessageShape } from "@bufbuild/protobuf";

import { type Channel, openChannel } from "./channel.js";
import { cancelled, HeadraceError, invalid } from "./errors.js";
import { milliseconds, Patience, pauseMs } from "./patience.js";
import { Route } from "./route.js";
import { isLocal, type Target, type Tls } from "./target.js";
import { fromWire, type Server, unreachable } from "./wire-errors.js";

/** Receives warnings; `console` is one. */
export interface Logger {
  debug(message: string): void;
  warn(message: string): void;
}

/** How a client connects. */
export interface ConnectionOptions {
  /** `HOST:PORT`, or several as `a:7440,b:7440`; `tls://` before the first for TLS. */
  readonly address?: string;
  /** TLS with this certificate authority; `{}` trusts the system's. */
  readonly tls?: Tls;
  /** Sent as `authorization: Bearer …` with every call, over TLS or on this machine only. */
  readonly token?: string | (() => string | Promise<string>);
  /** Limits each operation with all its retries; 30,000 when absent. */
  readonly timeoutMs?: number;
  /** Limits the operations until the first answer; 5,000 when absent. */
  readonly connectTimeoutMs?: number;
  /** Nothing is logged when absent. */
  readonly logger?: Logger;
}

/** Options of every method. */
export interface CallOptions {
  /** Cancels the call. */
  readonly signal?: AbortSignal | undefined;
  /** Replaces the client's timeout. */
  readonly timeoutMs?: number | undefined;
}

/** The kind of server that a connection leads to. */
export interface Traits extends Omit<Server, "address"> {
  /** Limits one attempt of a call; 15,000 when absent, Infinity if an answer may take any time. */
  readonly attemptMs?: number;
}

const ATTEMPT_MS = 15_000;

/** Whether an error means that a replica is unreachable, so that the next one is tried. */
export const isOutOfReach = (error: HeadraceError): boolean => error.reason === "UNREACHABLE" || error.reason === "DEADLINE";

export class Connection {
  readonly logger: Logger | undefined;
  readonly #target: Target;
  readonly #token: ConnectionOptions["token"];
  readonly #route: Route;
  readonly #patience: Patience;
  readonly #closed = new AbortController();
  readonly #server: Traits;

  constructor(target: Target, options: ConnectionOptions, server: Traits = { kind: "scheduler" }) {
    if (options.token && target.tls === undefined && !isLocal(target)) {
      throw invalid("token", "", "would be sent in plain text", "Write tls:// before the address, or give the option tls.");
    }
    if (typeof options.token === "string") soundToken(options.token);
    this.logger = options.logger;
    this.#target = target;
    this.#token = options.token || undefined;
    this.#server = server;
    this.#patience = new Patience(options.timeoutMs ?? 30_000, options.connectTimeoutMs ?? 5_000, server.attemptMs ?? ATTEMPT_MS);
    this.#route = new Route(target.replicas, (replica) => openChannel(replica, target.tls));
    setMaxListeners(0, this.#closed.signal); // one for each call in progress
  }

  /** For people. */
  get address(): string {
    return this.#route.address;
  }

  get replicas(): number {
    return this.#route.size;
  }

  get isClosed(): boolean {
    return this.#closed.signal.aborted;
  }

  /** The answer to a request, which is sent again unchanged as long as that may help. */
  async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: CallOptions = {},
  ): Promise<MessageShape<O>> {
    const began = performance.now();
    const timeoutMs = options.timeoutMs === undefined ? undefined : milliseconds(options.timeoutMs, "timeoutMs");
    for (let attempt = 1; ; attempt += 1) {
      const deadlineMs = this.#patience.attemptMs(performance.now() - began, this.#route.size, timeoutMs);
      try {
        return await this.once(method, request, { signal: options.signal, timeoutMs: deadlineMs });
      } catch (thrown) {
        const error = thrown as HeadraceError;
        const pause = this.#route.hasUntried ? 0 : pauseMs(attempt);
        const late = performance.now() - began + pause >= this.#patience.budgetMs(timeoutMs);
        if (!error.retryable || late) {
          const silent = error.reason === "DEADLINE" && !this.#patience.answered && timeoutMs === undefined;
          throw silent ? unreachable(this.#where(), error) : error; // a silent address, not a slow server
        }
        this.logger?.debug(`${error.message} Trying ${method.name} again.`);
        await this.sleep(pause, options.signal);
      }
    }
  }

  /** One attempt. */
  async once<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
    options: { signal?: AbortSignal | undefined; timeoutMs: number },
  ): Promise<MessageShape<O>> {
    const timeoutMs = milliseconds(options.timeoutMs, "timeoutMs");
    const headers = await this.#headers();
    const [end, signal] = this.#begin(options.signal);
    const channel = this.#route.channel();
    try {
      const { message } = await channel.transport.unary(method, signal, timeoutMs, headers, request);
      this.#note(channel);
      return message;
    } catch (thrown) {
      throw this.#failure(thrown, channel, options.signal);
    } finally {
      end();
    }
  }

  /** One stream of answers; leaving the loop ends it, on the server too. */
  async *stream<I extends DescMessage, O extends DescMessage>(
    method: DescMethodServerStreaming<I, O>,
    request: MessageShape<I>,
    options: { signal?: AbortSignal | undefined; timeoutMs: number },
  ): AsyncGenerator<MessageShape<O>, void> {
    const timeoutMs = milliseconds(options.timeoutMs, "timeoutMs");
    const headers = await this.#headers();
    const requests = (async function* () {
      yield request;
    })();
    const [end, signal] = this.#begin(options.signal);
    const channel = this.#route.channel();
    try {
      const { message } = await channel.transport.stream(method, signal, timeoutMs, headers, requests);
      yield* this.#answers(message[Symbol.asyncIterator](), channel, end);
    } catch (thrown) {
      throw this.#failure(thrown, channel, options.signal);
    } finally {
      end();
    }
  }

  /** The answers of a stream. connect-es clears the timer of its deadline when an answer is requested after the end. */
  async *#answers<T>(answers: AsyncIterator<T>, channel: Channel, end: () => void): AsyncGenerator<T, void> {
    let left = true;
    try {
      for (;;) {
        left = false;
        const { done, value } = await answers.next();
        if (done) return;
        this.#note(channel);
        left = true;
        yield value;
      }
    } finally {
      end();
      if (left) answers.next().catch(() => undefined);
    }
  }

  /** Waits; closing the client and the signal end every wait. */
  async sleep(ms: number, signal?: AbortSignal): Promise<void> {
    const [end, either] = this.#begin(signal);
    try {
      await sleep(ms, undefined, { signal: either });
    } catch (thrown) {
      throw this.#ended(signal) ?? thrown;
    } finally {
      end();
    }
  }

  /** Closes the connections. Watches end, and calls in progress fail as cancelled. */
  close(): void {
    this.#closed.abort();
    this.#route.close();
  }

  /** A signal that ends with the caller's and with the client, and a function to call when it is no longer needed. */
  #begin(signal: AbortSignal | undefined): [end: () => void, signal: AbortSignal] {
    const over = this.#ended(signal);
    if (over) throw over;
    const controller = new AbortController();
    const sources = [this.#closed.signal, ...(signal ? [signal] : [])];
    const abort = (): void => controller.abort();
    for (const source of sources) source.addEventListener("abort", abort);
    const end = (): void => {
      for (const source of sources) source.removeEventListener("abort", abort);
      controller.abort(); // a stream whose loop was left ends here
    };
    return [end, controller.signal];
  }

  #ended(signal: AbortSignal | undefined): HeadraceError | undefined {
    if (signal?.aborted) return cancelled(signal);
    if (!this.isClosed) return undefined;
    return new HeadraceError({ reason: "CANCELLED", problem: "This client is closed", remedy: "Make another one." });
  }

  #where(): Server {
    return { ...this.#server, address: this.address };
  }

  async #headers(): Promise<Record<string, string>> {
    if (this.#token === undefined) return {};
    const token = typeof this.#token === "string" ? this.#token : await this.#token();
    return { authorization: `Bearer ${soundToken(token)}` };
  }

  #note(channel: Channel): void {
    this.#patience.answered = true;
    this.#route.note(channel, false);
  }

  /** If nobody answers, the home may have another address. */
  #readAgain(): void {
    try {
      const now = this.#target.again?.();
      const inClear = this.#token !== undefined && this.#target.tls === undefined;
      if (now && !(inClear && !isLocal(now))) this.#route.leadTo(now.replicas);
    } catch {
      // no `headrace up` at the moment: the old address is as good as any
    }
  }

  #failure(thrown: unknown, channel: Channel, signal: AbortSignal | undefined): HeadraceError {
    const over = this.#ended(signal);
    if (over) return over;
    const error = fromWire(thrown, this.#where());
    if (!isOutOfReach(error)) {
      this.#note(channel);
      return error;
    }
    this.#route.note(channel, true);
    this.#readAgain();
    return error;
  }
}

/** A token without surrounding spaces and line ends, which files of secrets often have. The error does not show it. */
function soundToken(token: string): string {
  const bare = token.trim();
  if (/^[\x20-\x7e]*$/.test(bare)) return bare;
  throw invalid(
    "token",
    "",
    "holds a line end, or another character that no header may have",
    "Use the token alone, in printable ASCII. It may come from HEADRACE_TOKEN.",
  );
}
