/** Calls against a server that answers as a test says: retries, deadlines, errors, fail-over, watches. */
import assert from "node:assert/strict";
import { afterEach, test } from "node:test";
import { setTimeout as sleep } from "node:timers/promises";

import { Code, ConnectError, type ServiceImpl } from "@connectrpc/connect";

import { BadRequestSchema, ErrorInfoSchema } from "../src/gen/google/rpc/error_details_pb.js";
import { ErrorReason } from "../src/gen/headrace/v1/error_pb.js";
import { StudyService, StudyState, type WatchStudyRequest } from "../src/gen/headrace/v1/study_pb.js";
import { Client, type ConnectionOptions, type HeadraceError, InvalidFieldError, Planner } from "../src/index.js";
import { type Fake, serve } from "./fake.js";

const open: { close(): unknown }[] = [];
afterEach(async () => {
  for (const one of open.splice(0).reverse()) await one.close();
});

async function fake(service: Partial<ServiceImpl<typeof StudyService>>, port?: number): Promise<Fake> {
  const server = await serve((router) => router.service(StudyService, service), port);
  open.push(server);
  return server;
}

function client(address: string, options: ConnectionOptions = {}): Client {
  const made = new Client({ address, timeoutMs: 5_000, connectTimeoutMs: 2_000, ...options });
  open.push(made);
  return made;
}

const failing = (promise: Promise<unknown>): Promise<HeadraceError> =>
  promise.then(
    () => assert.fail("it does not fail"),
    (error: HeadraceError) => error,
  );

function told(code: Code, reason: string, remedy: string, fields: { field: string; description: string }[] = []): ConnectError {
  const details = [{ desc: ErrorInfoSchema, value: { domain: "headrace", reason, metadata: { remedy } } }];
  const wrong = fields.length ? [{ desc: BadRequestSchema, value: { fieldViolations: fields } }] : [];
  return new ConnectError("what is wrong", code, undefined, [...details, ...wrong]);
}

const ACTIVE = { study: { name: "studies/s", state: StudyState.ACTIVE } };

test("a call that finds nobody for a while is made again with the same request id", async () => {
  const ids: string[] = [];
  const { address } = await fake({
    stopStudy(request) {
      ids.push(request.requestId);
      if (ids.length < 3) throw new ConnectError("draining", Code.Unavailable);
      return ACTIVE;
    },
  });
  const study = client(address).study("s");
  assert.equal((await study.stop()).state, StudyState.ACTIVE);
  assert.equal(ids.length, 3);
  assert.equal(new Set(ids).size, 1);
  await study.stop();
  assert.notEqual(ids[3], ids[0]);
});

test("a call whose connection is cut is made again", async () => {
  let calls = 0;
  const server = await fake({
    async getStudy() {
      calls += 1;
      if (calls === 1) {
        server.cut();
        await sleep(50);
      }
      return ACTIVE;
    },
  });
  assert.equal((await client(server.address).study("s").status()).name, "studies/s");
  assert.equal(calls, 2);
});

test("an error that will not pass is not retried, and says what to do", async () => {
  let calls = 0;
  const { address } = await fake({
    getStudy() {
      calls += 1;
      throw told(Code.NotFound, "STUDY_NOT_FOUND", "List them.");
    },
  });
  const error = await failing(client(address).study("s").status());
  assert.deepEqual([error.reason, error.remedy, error.retryable, calls], ["STUDY_NOT_FOUND", "List them.", false, 1]);
  assert.equal(error.message, "what is wrong. List them.");
});

test("each field that the server names comes with its path, value and remedy", async () => {
  const { address } = await fake({
    createStudy() {
      throw told(Code.InvalidArgument, "INVALID_FIELD", "Correct them.", [
        { field: "space.lr.low", description: "is above high\n2\nSwap them." },
        { field: "max_steps", description: "is missing" },
      ]);
    },
  });
  const error = await failing(client(address).createStudy("s", {}));
  assert.ok(error instanceof InvalidFieldError);
  assert.deepEqual(error.violations[0], { field: "space.lr.low", message: "is above high", value: "2", remedy: "Swap them." });
  assert.match(error.message, /space\.lr\.low: is above high \(got 2\)\. Swap them\./);
});

test("every reason of the contract arrives as it is, and one of a newer server too", async () => {
  let reason = "";
  const { address } = await fake({
    getStudy() {
      throw told(Code.FailedPrecondition, reason, "Do.");
    },
  });
  const study = client(address).study("s");
  for (const name of [...Object.keys(ErrorReason).filter((one) => Number.isNaN(Number(one))), "SOMETHING_NEW"]) {
    reason = name;
    assert.equal((await failing(study.status())).reason, name);
  }
});

test("nobody at the address is an error that names it", async () => {
  const { address, close } = await serve(() => undefined);
  await close();
  const error = await failing(client(address, { connectTimeoutMs: 300 }).study("s").status());
  assert.equal(error.reason, "UNREACHABLE");
  assert.match(error.message, new RegExp(`No Headrace scheduler answers at ${address}\\. Start one`));
});

test("a deadline of a fraction of a millisecond is a deadline, and spoils no call after it", async () => {
  const { address } = await fake({
    async getStudy(_, context) {
      if ((context.timeoutMs() ?? 1e9) < 100) await sleep(200);
      return ACTIVE;
    },
  });
  const study = client(address).study("s");
  await study.status();
  for (const timeoutMs of [0.2, 1.5, 20.25]) assert.equal((await failing(study.status({ timeoutMs }))).reason, "DEADLINE");
  assert.equal((await study.status()).name, "studies/s");
  assert.ok((await failing(study.status({ timeoutMs: -1 }))) instanceof InvalidFieldError);
});

test("a signal cancels a call and its retries", async () => {
  const { address } = await fake({
    getStudy() {
      throw new ConnectError("draining", Code.Unavailable);
    },
  });
  const controller = new AbortController();
  const pending = failing(client(address).study("s").status({ signal: controller.signal }));
  await sleep(100);
  controller.abort(new Error("enough"));
  const error = await pending;
  assert.equal(error.reason, "CANCELLED");
  assert.equal((error.cause as Error).message, "enough");
});

test("the next replica is asked where one is gone, and kept", async () => {
  const gone = await serve(() => undefined);
  await gone.close();
  let calls = 0;
  const { address } = await fake({
    getStudy() {
      calls += 1;
      return ACTIVE;
    },
  });
  const study = client(`${gone.address},${address}`).study("s");
  const began = performance.now();
  await study.status();
  await study.status();
  assert.equal(calls, 2);
  assert.ok(performance.now() - began < 1_500);
});

test("a token goes with every call, and never in plain text over a network", async () => {
  const seen: (string | null)[] = [];
  const { address } = await fake({
    getStudy(_, context) {
      seen.push(context.requestHeader.get("authorization"));
      return ACTIVE;
    },
  });
  await client(address, { token: async () => "secret" })
    .study("s")
    .status();
  assert.deepEqual(seen, ["Bearer secret"]);
  assert.throws(() => new Client({ address: "example.org:7440", token: "secret" }), InvalidFieldError);

  process.env["HEADRACE_TOKEN"] = " of the environment\n";
  try {
    await client(address).study("s").status();
    assert.equal(seen.at(-1), "Bearer of the environment");
    await client(address, { token: "given" }).study("s").status();
    assert.equal(seen.at(-1), "Bearer given");
    assert.throws(() => new Client({ address: "example.org:7440" }), InvalidFieldError);
  } finally {
    delete process.env["HEADRACE_TOKEN"];
  }
  await client(address, { token: "" }).study("s").status();
  assert.equal(seen.at(-1), null);
});

test("a planner gets the token of the environment over TLS alone", () => {
  process.env["HEADRACE_TOKEN"] = "sec\nret"; // which no header may have
  try {
    assert.throws(() => new Planner({ address: "tls://p:1" }), InvalidFieldError);
    new Planner({ address: "p:1" });
  } finally {
    delete process.env["HEADRACE_TOKEN"];
  }
});

test("a token that no header may have is an error of that field, which does not show it", async () => {
  const { address } = await fake({ getStudy: () => ACTIVE });
  const shown = (error: unknown): boolean => error instanceof InvalidFieldError && !error.message.includes("sec");
  assert.throws(() => new Client({ address, token: "sec\nret" }), shown);
  assert.ok(
    shown(
      await failing(
        client(address, { token: () => "sécret" })
          .study("s")
          .status(),
      ),
    ),
  );
});

test("a server that is older than the client does not know a call", async () => {
  const { address } = await fake({ getStudy: () => ACTIVE });
  const study = client(address).study("s");
  await study.status();
  const error = await failing(study.room());
  assert.equal(error.reason, "UNSUPPORTED");
  assert.match(error.remedy, /older than this client/);
  assert.equal(error.retryable, false);
});

test("a server that is too busy does not call the message too large", async () => {
  for (const [said, reason] of [
    ["Concurrent RPC limit exceeded!", "INTERNAL"],
    ["Received message larger than max (9 vs. 8)", "TOO_LARGE"],
  ] as const) {
    const { address } = await fake({
      getStudy: () => {
        throw new ConnectError(said, Code.ResourceExhausted);
      },
    });
    assert.equal((await failing(client(address).study("s").status())).reason, reason);
  }
});

test("an enum's number and a field of a newer server do no harm", async () => {
  const { address } = await fake({ getStudy: () => ({ study: { name: "studies/s", state: 99 as StudyState } }) });
  assert.equal((await client(address).study("s").status()).state, 99);
});

test("a watch goes on at its cursor over breaks, repeats and streams that end well", async () => {
  const asked: bigint[] = [];
  const study = (state: StudyState) => ({ name: "studies/s", state, status: { cursor: 6n } });
  const events = (...cursors: number[]) => cursors.map((cursor) => ({ cursor: BigInt(cursor) }));
  const server = await fake({
    getStudy: () => ({ study: study(StudyState.ACTIVE) }),
    async *watchStudy(request: WatchStudyRequest) {
      asked.push(request.afterCursor);
      if (asked.length === 1) {
        yield { events: events(1, 2), study: study(StudyState.ACTIVE) };
        await sleep(20);
        server.cut();
        await sleep(50);
      } else if (asked.length === 2) {
        yield { events: events(2, 3, 4), study: study(StudyState.ACTIVE) };
      } else {
        yield { events: events(5, 6), study: study(StudyState.COMPLETED) };
      }
    },
  });
  const seen: number[] = [];
  const breaks: string[] = [];
  for await (const update of client(server.address)
    .study("s")
    .watch({ onBreak: (error) => breaks.push(error.reason) })) {
    seen.push(...update.events.map((event) => event.cursor));
  }
  assert.deepEqual(seen, [1, 2, 3, 4, 5, 6]);
  assert.deepEqual(asked, [0n, 2n, 4n]);
  assert.deepEqual(breaks, ["UNREACHABLE"]);
});

test("leaving a watch ends it on the server, and closing the client ends it here", async () => {
  let ended = 0;
  const { address } = await fake({
    async *watchStudy(_, context) {
      context.signal.addEventListener("abort", () => (ended += 1));
      for (let cursor = 1n; !context.signal.aborted; cursor += 1n) {
        yield { events: [{ cursor }], ...ACTIVE };
        await sleep(10);
      }
    },
  });
  const made = client(address);
  for await (const update of made.study("s").watch()) if (update.events.length) break;
  for (let waited = 0; ended === 0 && waited < 100; waited += 1) await sleep(10);
  assert.equal(ended, 1);
  for await (const update of made.study("s").watch()) if (update.events[0]?.cursor === 3) made.close();
  assert.equal((await failing(made.study("s").status())).reason, "CANCELLED");
});

test("a study that is deleted while it is watched is an error", async () => {
  const { address } = await fake({
    async *watchStudy() {
      yield { events: [], ...ACTIVE };
      throw told(Code.NotFound, "STUDY_NOT_FOUND", "List them.");
    },
  });
  const watching = (async () => {
    for await (const update of client(address).study("s").watch()) assert.equal(update.study.name, "studies/s");
  })();
  assert.equal((await failing(watching)).reason, "STUDY_NOT_FOUND");
});
