/** The trial program of the conformance suite. */
import { readFile, writeFile } from "node:fs/promises";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

import { runTrial } from "../src/trial/index.js";

await runTrial(
  async (trial) => {
    const { x = 0, save: always = 0, pause_s = 0, fails_at = 0 } = trial.params as Record<string, number>;
    let state = { step: 0, sum: 0 };
    if (trial.restoreDir) state = JSON.parse(await readFile(join(trial.restoreDir, "state.json"), "utf8"));
    const save = (folder: string) => writeFile(join(folder, "state.json"), JSON.stringify(state));
    for await (const step of trial.steps({ save })) {
      if (pause_s) await sleep(pause_s * 1000);
      if (step === fails_at) throw new Error("fails as told");
      state = { step, sum: (state.sum * 31 + step) % 1_000_003 };
      await trial.report({ loss: x + 1 / step, sum: state.sum }, { save: always === 1 });
    }
  },
  { defaults: { x: 0.5 }, steps: 9 },
);
