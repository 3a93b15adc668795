/** The client against a real scheduler, which is killed under it, and a trial in TypeScript on a real worker. */
import assert from "node:assert/strict";
import { readdirSync, readFileSync } from "node:fs";
import { join } from "node:path";
import { after, before, test } from "node:test";
import { fileURLToPath } from "node:url";

import {
  asha,
  AshaVariant,
  Client,
  collect,
  command,
  DecisionAction,
  float,
  hasEnded,
  HeadraceError,
  InvalidFieldError,
  minimize,
  runAll,
  space,
  type Study,
  type StudySpecInit,
  StudyState,
  TerminationReason,
  TrialState,
} from "../src/index.js";
import { type Site, up } from "./site.js";

/** How often the scheduler is killed under a loop and a watch. */
const KILLS = Number(process.env["HEADRACE_KILLS"] ?? 3);

let site: Site;
let client: Client;

before(async () => {
  site = await up("--slots", "2", "--heartbeat-interval", "0.5", "--lease-ttl", "3");
  client = new Client({ address: site.address, timeoutMs: 60_000, connectTimeoutMs: 60_000 });
});

after(async () => {
  client?.close();
  await site?.stop();
});

const ASKED: StudySpecInit = {
  objective: minimize("loss"),
  space: space({ x: float(0, 1) }),
  policy: asha({ eta: 2, rungs: [2, 4, 8], variant: AshaVariant.STOPPING }),
  sampler: { kind: { case: "random", value: {} } },
  maxTrials: 12,
  maxSteps: 8,
  seed: 1,
};

const reasonOf = async (promise: Promise<unknown>): Promise<string> => {
  try {
    await promise;
  } catch (error) {
    assert.ok(error instanceof HeadraceError, String(error));
    return error.reason;
  }
  return "none";
};

/** One loop over trials; returns every report that was answered. */
async function loop(study: Study, onReport: () => void = () => undefined): Promise<string[]> {
  const answered: string[] = [];
  for await (const asked of study.askAll()) {
    for (let step = asked.step + 1; !asked.ended && step <= 8; step += 1) {
      await asked.report(step, { loss: asked.number / 100 + 1 / step });
      answered.push(`${asked.number}/${step}`);
      onReport();
    }
    if (!asked.ended) await asked.complete();
  }
  return answered;
}

test("a study is previewed, created, asked, told and read", async () => {
  assert.equal((await client.preview(ASKED)).trials, 12);
  const study = await client.createStudy("asked", ASKED);
  const answered = await loop(study);
  const info = await study.wait();
  assert.equal(info.state, StudyState.COMPLETED);
  assert.equal(info.status?.best?.number, (await study.best())?.number);
  const trials = await collect(study.trials({ pageSize: 5 }));
  assert.deepEqual(
    trials.map((trial) => trial.number),
    [...Array(12).keys()],
  );
  assert.ok(trials.every((trial) => trial.createTime instanceof Date && typeof trial.parameters?.["x"] === "number"));
  const reports = await collect(study.reports({ pageSize: 7 }));
  assert.deepEqual(reports.map((one) => `${one.trialNumber}/${one.step}`).sort(), answered.sort());
  assert.ok((await study.trial(0).explain()).events.length > 0);
  assert.ok((await collect(client.studies())).some((one) => one.name === "studies/asked"));
  assert.equal((await study.importance())[0]?.metric, "loss");
  const copy = await client.createStudy("copied", { ...info.spec, maxTrials: 1 });
  assert.equal((await copy.status()).spec?.maxTrials, 1);
  await copy.stop("enough");
  await copy.delete();
  assert.equal(await reasonOf(copy.status()), "STUDY_NOT_FOUND");
});

test("errors of the server have their reasons", async () => {
  assert.equal(await reasonOf(client.createStudy("asked", ASKED)), "STUDY_EXISTS");
  assert.equal(await reasonOf(client.study("nobody").status()), "STUDY_NOT_FOUND");
  assert.equal(await reasonOf(client.study("asked").trial(99).info()), "TRIAL_NOT_FOUND");
  assert.equal(await reasonOf(client.study("asked").pause()), "STUDY_ENDED");
  await assert.rejects(
    client.createStudy("wrong", { ...ASKED, space: space({ x: float(2, 1) }), maxTrials: 0 }),
    (error) =>
      error instanceof InvalidFieldError &&
      error.violations.length > 0 &&
      error.violations.every((one) => one.field && one.remedy),
  );
  const huge = { ...ASKED, space: space({ x: { case: "categorical", value: { values: ["x".repeat(6_000_000)] } } }) };
  assert.equal(await reasonOf(client.createStudy("huge", huge)), "TOO_LARGE");
});

test("a lease is kept alive, given back, and lost", async () => {
  const study = await client.createStudy("leases", { ...ASKED, maxTrials: 1, policy: runAll() });
  const kept = await study.ask({ leaseMs: 1_000 });
  assert.ok(kept);
  assert.equal((await kept.report(1, { loss: 1 }, { checkpointUri: "mine:1" })).action, DecisionAction.CONTINUE);
  const working = new AbortController();
  const alive = kept.keepAlive(working.signal);
  assert.equal(await reasonOf(study.ask({ waitMs: 2_500 })), "DEADLINE");
  working.abort();
  await alive;
  assert.equal((await kept.release()).state, TrialState.PAUSED);
  const again = await study.ask({ leaseMs: 1_000 });
  assert.deepEqual([again?.step, again?.checkpointUri], [1, "mine:1"]);
  const other = await study.ask({ waitMs: 10_000 }); // the second lease ends unused
  assert.ok(other);
  assert.equal(await reasonOf((again ?? assert.fail()).report(2, { loss: 1 })), "LEASE_STALE");
  assert.equal((await other.complete()).terminationReason, TerminationReason.COMPLETED);
});

test(`a loop and a watch outlive ${KILLS} kills of the scheduler`, { timeout: 600_000 }, async () => {
  const trials = 12 + 8 * KILLS;
  const study = await client.createStudy("killed", { ...ASKED, maxTrials: trials });
  let [reports, kills, breaks] = [0, 0, 0];
  const hurt = (): void => {
    reports += 1;
    if (kills < KILLS && reports >= 10 * (kills + 1) && site.kill("scheduler")) kills += 1;
  };
  const watching = (async () => {
    const cursors: number[] = [];
    for await (const update of study.watch({ onBreak: () => (breaks += 1) })) {
      cursors.push(...update.events.map((event) => event.cursor));
    }
    return cursors;
  })();
  const answered = (await Promise.all([loop(study, hurt), loop(study, hurt)])).flat();
  const cursors = await watching;
  const stored = (await collect(study.reports())).map((one) => `${one.trialNumber}/${one.step}`);
  const { status, state } = await study.status();
  assert.equal(kills, KILLS);
  assert.ok(breaks > 0);
  assert.equal(state, StudyState.COMPLETED);
  assert.deepEqual(stored.sort(), answered.sort(), "what was answered is stored, once, and nothing else is");
  assert.deepEqual(
    cursors,
    [...Array(status?.cursor).keys()].map((before) => before + 1),
    "no event is missed or repeated",
  );
  assert.equal(status?.terminated, trials);
  console.log(
    `${kills} kills: ${answered.length} reports answered, ${stored.length} stored, ${cursors.length} events, ${breaks} breaks of the watch`,
  );
});

test("a trial in TypeScript is paused at rungs, loses its worker, and resumes exactly", { timeout: 600_000 }, async () => {
  const folder = fileURLToPath(new URL("../examples", import.meta.url));
  const journal = join(site.folder, "journal");
  const study = await client.createStudy("chains", {
    ...ASKED,
    policy: asha({ eta: 3, rungs: [2, 6, 18], variant: AshaVariant.PROMOTION }),
    template: command([process.execPath, "chain.js"], folder, { CHAIN_JOURNAL: journal, CHAIN_STEP_MS: "30" }),
    maxTrials: 9,
    maxSteps: 18,
    maxRetries: 0,
  });
  let info = await study.status();
  let [kills, running] = [0, 0];
  for await (const update of study.watch()) {
    info = update.study;
    running += update.events.filter((event) => event.detail.case === "reportRecorded").length;
    if (kills < 2 && running > 12 * (kills + 1) && site.kill("worker")) kills += 1;
  }
  assert.equal(info.state, StudyState.COMPLETED, info.detail);
  assert.ok(hasEnded(info));
  assert.equal(kills, 2);
  const trials = await collect(study.trials());
  assert.equal(trials.filter((trial) => trial.failures > 0).length, 0);
  assert.ok(
    trials.some((trial) => trial.interruptions > 0),
    "no trial was under the worker that was killed",
  );
  const attempts = trials.reduce((sum, trial) => sum + trial.attempt, 0);
  assert.ok(attempts > trials.length, "no trial was resumed");
  const lines = readdirSync(journal).flatMap((file) => readFileSync(join(journal, file), "utf8").trim().split("\n"));
  const values = new Map<string, string>();
  for (const { trial, step, value } of lines.map((line) => JSON.parse(line) as { trial: number; step: number; value: string })) {
    const before = values.get(`${trial}/${step}`) ?? value;
    assert.equal(value, before, `step ${step} of trial ${trial} differs from the first time`);
    values.set(`${trial}/${step}`, value);
  }
  console.log(
    `chains: ${trials.length} trials, ${attempts} attempts, ${kills} kills of the worker, ${lines.length} steps, ${lines.length - values.size} done twice and equal`,
  );
});
