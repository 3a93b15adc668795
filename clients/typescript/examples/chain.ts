/**
 * A trial in TypeScript whose every step depends on all steps before it: a chain of hashes.
 *
 * A study runs it with `trial: {command: [node, chain.js]}`. With CHAIN_JOURNAL each step is written down there, so that
 * a run that was interrupted can be compared with one that was not.
 */
import { createHash } from "node:crypto";
import { appendFileSync, mkdirSync } from "node:fs";
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { runTrial, type Trial } from "@headrace/client/trial";

const next = (value: string): string => createHash("sha256").update(value).digest("hex");

async function train(trial: Trial): Promise<void> {
  let value = next(`${trial.seed} ${trial.params["x"]}`);
  if (trial.restoreDir) value = await readFile(join(trial.restoreDir, "value"), "utf8");
  const save = (folder: string) => writeFile(join(folder, "value"), value);
  for await (const step of trial.steps({ save, checkpointEvery: 3 })) {
    await sleep(Number(process.env["CHAIN_STEP_MS"] ?? 0));
    value = next(value);
    note(trial, step, value);
    await trial.report({ loss: Number.parseInt(value.slice(0, 8), 16) / 2 ** 32 });
  }
}

function note(trial: Trial, step: number, value: string): void {
  const folder = process.env["CHAIN_JOURNAL"];
  if (!folder) return;
  mkdirSync(folder, { recursive: true });
  appendFileSync(join(folder, `${trial.number}.jsonl`), `${JSON.stringify({ trial: trial.number, step, value })}\n`);
}

await runTrial(train, { defaults: { x: 0.5 }, steps: 5 });
