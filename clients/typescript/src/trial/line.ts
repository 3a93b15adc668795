/**
 * The connection to the worker: unary calls over its Unix socket, each safe to repeat.
 *
 * The worker survives a lost scheduler, but a trial does not survive its worker. So calls to an unreachable worker
 * are retried for seconds, not forever. A call that runs into its deadline is waiting for a decision, and is repeated
 * unchanged: its sequence shows that it is the same.
 */
import type { DescMessage, DescMethodUnary, MessageShape } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";

import { Connection } from "../connection.js";
import type { HeadraceError } from "../errors.js";
import { pauseMs } from "../patience.js";
import { TrialRefusedError, WorkerGoneError } from "./errors.js";

const DEADLINE_MS = 600_000;
const UNREACHABLE_FOR_MS = 15_000;

export class Line {
  readonly #connection: Connection;
  /** Whether the worker was given up. */
  gone = false;

  constructor(
    address: string,
    private readonly unreachableForMs = UNREACHABLE_FOR_MS,
  ) {
    this.#connection = new Connection({ replicas: [address] }, {}, { kind: "worker" });
  }

  /** The answer. Throws TrialRefusedError, and WorkerGoneError. */
  async call<I extends DescMessage, O extends DescMessage>(
    method: DescMethodUnary<I, O>,
    request: MessageShape<I>,
  ): Promise<MessageShape<O>> {
    let silentSince: number | undefined;
    for (let attempt = 1; ; attempt += 1) {
      try {
        return await this.#connection.once(method, request, { timeoutMs: DEADLINE_MS });
      } catch (thrown) {
        const error = thrown as HeadraceError;
        if (error.reason === "DEADLINE") {
          silentSince = undefined;
          continue; // the worker is alive, and still waiting for the decision
        }
        if (error.reason !== "UNREACHABLE") {
          const leaseOver = ConnectError.from(error.cause).code === Code.NotFound;
          throw new TrialRefusedError(error.problem, { cause: error, leaseOver });
        }
        silentSince ??= performance.now();
        if (performance.now() - silentSince > this.unreachableForMs) {
          this.gone = true;
          throw new WorkerGoneError(`${error.problem} any more`, { cause: error });
        }
        await this.#connection.sleep(pauseMs(attempt) / 2);
      }
    }
  }

  close(): void {
    this.#connection.close();
  }
}
