/** What is pure: values, addresses, patience, steps, the best report. */
import assert from "node:assert/strict";
import { test } from "node:test";

import { create } from "@bufbuild/protobuf";

import { InvalidFieldError } from "../src/errors.js";
import { KeepBestSchema } from "../src/gen/headrace/v1/event_pb.js";
import { Goal, StudySpecSchema } from "../src/gen/headrace/v1/spec_pb.js";
import { asha, choice, float, int, minimize, space, when } from "../src/index.js";
import { milliseconds, Patience, pauseMs } from "../src/patience.js";
import { duration, message, parameters, plain } from "../src/plain.js";
import { Route } from "../src/route.js";
import { isLocal, parseTarget } from "../src/target.js";
import { Best } from "../src/trial/best.js";
import { refusal } from "../src/trial/steps.js";
import { WatchPosition } from "../src/watch.js";

const SPEC = {
  objective: minimize("loss"),
  space: space({ lr: float(1e-4, 1, { log: true }), net: choice("mlp", "cnn"), width: when("net", "cnn", int(1, 8)) }),
  policy: asha({ rungs: [1, 3, 9] }),
  baseline: { lr: 0.5, net: "mlp" },
  template: { program: { case: "command" as const, value: { args: ["node", "train.js"] } }, grace: 1.5 },
  maxTrials: 9,
  maxSteps: 9,
};

test("a spec is the same as a value and as a message", () => {
  const made = message(StudySpecSchema, SPEC);
  assert.equal(made.maxSteps, 9n);
  assert.equal(made.template?.grace?.nanos, 500_000_000);
  assert.deepEqual(message(StudySpecSchema, plain(made)), made);
  assert.deepEqual(plain(made).baseline, { lr: 0.5, net: "mlp" });
});

for (const [name, spec, field] of [
  ["an unknown field", { objectiv: {} }, "objectiv"],
  ["a text for a number", { policy: { kind: { case: "asha", value: { eta: "3" } } } }, "policy.asha.eta"],
  ["a fraction for an integer", { maxSteps: 1.5 }, "max_steps"],
  ["an unknown case", { policy: { kind: { case: "best", value: {} } } }, "policy"],
  ["no value of a parameter", { baseline: { lr: null } }, "baseline.lr"],
] as const) {
  test(`${name} is refused by its path`, () => {
    assert.throws(
      () => message(StudySpecSchema, spec as never),
      (error) => error instanceof InvalidFieldError && error.violations[0]?.field === field && error.remedy !== "",
    );
  });
}

test("whole numbers are sent as integers, others as floats", () => {
  const { values } = parameters({ a: 1, b: 0.5, c: "x", d: true });
  assert.deepEqual(
    [values["a"], values["b"], values["c"], values["d"]].map((one) => one?.kind.case),
    ["intValue", "floatValue", "stringValue", "boolValue"],
  );
  assert.deepEqual(plain(duration(2.25)), 2.25);
  assert.equal(duration(2.9999999999).nanos, 999_999_999);
});

test("a time on the wire is whole milliseconds, at least one", () => {
  assert.equal(milliseconds(0.2, "timeoutMs"), 1);
  assert.equal(milliseconds(1500.5, "timeoutMs"), 1501);
  assert.equal(milliseconds(1e12, "timeoutMs"), 99_999_999);
  for (const wrong of [0, -1, NaN]) assert.throws(() => milliseconds(wrong, "timeoutMs"), InvalidFieldError);
});

test("a client that had no answer yet gives up sooner", () => {
  const patience = new Patience(30_000, 5_000, 15_000);
  assert.deepEqual([patience.budgetMs(), patience.attemptMs(0, 1), patience.attemptMs(0, 2)], [5_000, 15_000, 2_500]);
  patience.answered = true;
  assert.deepEqual([patience.budgetMs(), patience.attemptMs(20_000, 2), patience.attemptMs(40_000, 2)], [30_000, 10_000, 1]);
  assert.equal(
    pauseMs(1, () => 1),
    200,
  );
  assert.equal(
    pauseMs(20, () => 1),
    2_000,
  );
});

test("addresses are parsed, and wrong ones refused", () => {
  assert.deepEqual(parseTarget("a:7440, b:7441,a:7440", "address").replicas, ["a:7440", "b:7441"]);
  const secured = parseTarget("tls://a:1,tls://[::1]:2", "address");
  assert.deepEqual([secured.replicas, secured.tls], [["a:1", "[::1]:2"], {}]);
  assert.deepEqual(parseTarget("unix:/run/rt", "address").replicas, ["unix:/run/rt"]);
  for (const wrong of ["", "host", "host:0", "host:65536", "http://host:1", "::1:7440", "a:1,b"]) {
    assert.throws(() => parseTarget(wrong, "address"), InvalidFieldError, wrong);
  }
  assert.ok(isLocal(parseTarget("127.0.0.1:1,localhost:2", "address")));
  assert.ok(!isLocal(parseTarget("127.0.0.1:1,host:2", "address")));
});

test("a route stays where it is answered, and moves on once where several calls fail", () => {
  const opened: string[] = [];
  const route = new Route(["a", "b"], (replica) => {
    opened.push(replica);
    return { transport: undefined as never, close: () => undefined };
  });
  const first = route.channel();
  route.note(first, true);
  route.note(first, true);
  assert.ok(route.hasUntried);
  const second = route.channel();
  assert.notEqual(second, first);
  route.note(second, true);
  assert.ok(!route.hasUntried);
  assert.equal(route.channel(), first);
  assert.deepEqual(opened, ["a", "b"]);
});

test("a watch drops what it has seen, and is over with the last event of an ended study", () => {
  const position = new WatchPosition(2);
  const events = [2, 3, 4].map((cursor) => ({ cursor }) as never);
  const study = (state: number, cursor: number) => ({ state, status: { cursor } }) as never;
  assert.deepEqual(
    position.accept(events, study(3, 5)).map((event) => event.cursor),
    [3, 4],
  );
  assert.ok(!position.done);
  position.accept([{ cursor: 5 } as never], study(3, 5));
  assert.ok(position.done);
  assert.deepEqual(position.accept(events, study(3, 5)), []);
  assert.equal(position.cursor, 5);
});

test("a message without events moves a watch past those that were deleted by age", () => {
  const position = new WatchPosition(2);
  const study = (state: number, cursor: number) => ({ state, status: { cursor } }) as never;
  assert.deepEqual(position.accept([], study(1, 4)), []);
  assert.deepEqual([position.cursor, position.done], [4, false]);
  assert.deepEqual(position.accept([], study(3, 9)), []);
  assert.deepEqual([position.cursor, position.done], [9, true]);
});

test("a step is refused that a study could not use", () => {
  const budget = { since: 3, maxSteps: 9, rungs: [1, 3, 6, 9] };
  assert.equal(refusal(4, budget), undefined);
  assert.equal(refusal(6, budget), undefined);
  for (const wrong of [0, 1.5, 3, 7, 10]) assert.ok(refusal(wrong, budget), `${wrong}`);
});

test("a report is the best that meets the constraints and beats those before", () => {
  const told = create(KeepBestSchema, {
    goal: Goal.MAXIMIZE,
    bestValue: 1,
    constraints: [{ metric: "size", bound: { case: "atMost", value: 10 } }],
  });
  const best = new Best(told, "score");
  assert.deepEqual(
    [
      { score: 1, size: 1 },
      { score: 2, size: 11 },
      { score: 2, size: 10 },
      { score: 2, size: 1 },
      { score: NaN, size: 1 },
      { score: 9 },
    ].map((one) => best.observe(one as never)),
    [false, false, true, false, false, false],
  );
  assert.equal(new Best(undefined, "score").observe({ score: 1 }), false);
});
