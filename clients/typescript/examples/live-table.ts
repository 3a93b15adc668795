/** A study in the terminal, as it runs: `node live-table.js STUDY`. */
import { Client, collect, TrialState, type TrialInfo } from "@headrace/client";

const ROWS = 15;
const [name = "parabola"] = process.argv.slice(2);
const client = new Client();

const cell = (value: unknown, width: number): string =>
  String(value ?? "")
    .slice(0, width)
    .padEnd(width);
const shown = (value: unknown): unknown => (typeof value === "number" ? Number(value.toPrecision(5)) : value);

function row(trial: TrialInfo): string {
  const params = Object.entries(trial.parameters ?? {}).map(([key, value]) => `${key}=${shown(value)}`);
  return [
    cell(trial.number, 6),
    cell(TrialState[trial.state], 11),
    cell(trial.step, 6),
    cell(shown(trial.score), 12),
    params.join(" "),
  ].join("");
}

try {
  const study = client.study(name);
  let drawn = 0;
  for await (const { study: now } of study.watch()) {
    if (process.stdout.isTTY && Date.now() - drawn < 200 && !now.endTime) continue; // fast enough for eyes
    drawn = Date.now();
    const trials = (await collect(study.trials())).sort((a, b) => (a.score ?? Infinity) - (b.score ?? Infinity));
    const { running = 0, paused = 0, terminated = 0 } = now.status ?? {};
    if (process.stdout.isTTY) process.stdout.write("\x1b[2J\x1b[H");
    else if (!now.endTime) continue;
    console.log(`${name}: ${running} running, ${paused} paused, ${terminated} ended`);
    console.log(`${cell("trial", 6)}${cell("state", 11)}${cell("step", 6)}${cell("best", 12)}parameters`);
    console.log(trials.slice(0, ROWS).map(row).join("\n"));
  }
} finally {
  client.close();
}
