/** The trial library without a worker: what is saved, what is told, when the loop ends, and how the line fails. */
import assert from "node:assert/strict";
import { existsSync, mkdtempSync, readdirSync, readFileSync, rmSync, writeFileSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { afterEach, beforeEach, test } from "node:test";

import { create } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";

import { DecisionAction, DecisionSchema, KeepBestSchema } from "../src/gen/headrace/v1/event_pb.js";
import { AttachRequestSchema, TrialRuntimeService } from "../src/gen/headrace/v1/runtime_pb.js";
import { Goal } from "../src/gen/headrace/v1/spec_pb.js";
import { TrialRefusedError, WorkerGoneError } from "../src/trial/errors.js";
import { Line } from "../src/trial/line.js";
import type { Assignment, Runtime, Told } from "../src/trial/runtime.js";
import { Trial } from "../src/trial/trial.js";
import { serve } from "./fake.js";

let folder: string;
let told: Told[];
let restored: number;

beforeEach(() => {
  folder = mkdtempSync(join(tmpdir(), "headrace-trial-"));
  told = [];
  restored = 0;
});
afterEach(() => rmSync(folder, { recursive: true }));

/** A trial whose worker says CONTINUE until a step. */
function trial(changes: Partial<Assignment> = {}, pausesAt = 99): Trial {
  const base = { trial: "studies/s/trials/7", params: { x: 1 }, maxSteps: 9, nextMilestone: 3, seed: 1, metric: "loss" };
  const place = { rungs: [3, 6, 9], resumeStep: 0, slots: [0], checkpointDir: join(folder, "new") };
  const assignment: Assignment = { ...base, ...place, ...changes };
  const runtime: Runtime = {
    attach: () => assert.fail("it is attached"),
    restored: async () => void (restored += 1),
    report: async (one) => {
      assert.ok(one.checkpointDir === "" || readdirSync(one.checkpointDir).length > 0, "it is told before it is saved");
      told.push(one);
      const action = one.step >= pausesAt ? DecisionAction.PAUSE : DecisionAction.CONTINUE;
      const next = assignment.rungs.find((rung) => rung > one.step) ?? 0;
      return create(DecisionSchema, { action, nextMilestone: BigInt(next) });
    },
    finish: async () => undefined,
  };
  return new Trial(assignment, runtime);
}

const save = (into: string): void => writeFileSync(join(into, "state"), "here");
const savedAt = (): number[] => told.filter((one) => one.checkpointDir).map((one) => one.step);

async function run(one: Trial, options: { checkpointEvery?: number } = {}, loss = (step: number) => step): Promise<void> {
  for await (const step of one.steps({ save, ...options })) await one.report({ loss: loss(step) });
}

test("a trial saves at milestones, in new folders, and ends where it is told to", async () => {
  const one = trial({}, 6);
  await run(one);
  assert.deepEqual(
    told.map((report) => [report.sequence, report.step]),
    [1, 2, 3, 4, 5, 6].map((step) => [step, step]),
  );
  assert.deepEqual(savedAt(), [3, 6]);
  assert.equal(readFileSync(join(told[2]?.checkpointDir ?? "", "state"), "utf8"), "here");
  assert.ok(readdirSync(join(folder, "new")).every((name) => !name.endsWith(".part")));
  assert.ok(one.ended);
  assert.equal(restored, 0);
  await assert.rejects(async () => one.report({ loss: 1 }), RangeError);
});

test("a trial that is resumed says so once, and goes on behind its checkpoint", async () => {
  const one = trial({ restoreDir: folder, resumeStep: 3, nextMilestone: 6 });
  await run(one);
  assert.deepEqual(
    told.map((report) => report.step),
    [4, 5, 6, 7, 8, 9],
  );
  assert.equal(restored, 1);
  assert.ok(!one.ended);
});

test("a trial also saves every so many steps, where it is asked to, and at its best report", async () => {
  await run(trial({ nextMilestone: 9, rungs: [9] }, 9), { checkpointEvery: 4 });
  assert.deepEqual(savedAt(), [4, 8, 9]);
  told = [];
  const keepBest = create(KeepBestSchema, { goal: Goal.MINIMIZE, bestValue: 2 });
  await run(trial({ nextMilestone: 9, rungs: [9], keepBest, checkpointDir: join(folder, "best") }, 9), {}, (step) =>
    Math.abs(step - 4),
  );
  assert.deepEqual(savedAt(), [3, 4, 9]);
});

test("what a program does before its loop does not count as its first step", async () => {
  const one = trial();
  await new Promise((resolve) => setTimeout(resolve, 60)); // it loads its data
  await run(one);
  assert.ok((told[0]?.trainSeconds ?? 1) < 0.05, `${told[0]?.trainSeconds} s`);
});

test("a report that jumps over a rung or is not a number is refused before it is sent", async () => {
  const one = trial();
  await assert.rejects(async () => one.report({ loss: 1 }, { step: 4 }), /rung at step 3/);
  await assert.rejects(async () => one.report({ loss: "1" as never }, { step: 1 }), TypeError);
  assert.equal(told.length, 0);
  assert.equal(existsSync(join(folder, "new")), false);
});

test("a line that is refused says whether the lease is over, and one to nobody gives up", async () => {
  let code = Code.NotFound;
  const server = await serve((router) =>
    router.service(TrialRuntimeService, {
      attach() {
        throw new ConnectError("you no longer hold this trial", code);
      },
    }),
  );
  const line = new Line(server.address, 100);
  const attach = (): Promise<unknown> => line.call(TrialRuntimeService.method.attach, create(AttachRequestSchema, {}));
  await assert.rejects(attach, (error) => error instanceof TrialRefusedError && error.leaseOver);
  code = Code.InvalidArgument;
  await assert.rejects(attach, (error) => error instanceof TrialRefusedError && !error.leaseOver);
  await server.close();
  await assert.rejects(attach, WorkerGoneError);
  assert.ok(line.gone);
  line.close();
});
