/**
 * A trial written for Node: the program of a study with `trial: {command: [node, train.js]}`.
 *
 *     await runTrial(async (trial) => {
 *       let weights = trial.restoreDir ? await load(trial.restoreDir) : initial(trial.seed);
 *       for await (const step of trial.steps({ save: (folder) => store(folder, weights) })) {
 *         weights = train(weights, trial.params);
 *         await trial.report({ loss: loss(weights) });
 *       }
 *     });
 */
export { TrialRefusedError, WorkerGoneError } from "./errors.js";
export type { Params, Value } from "../plain.js";
export { runTrial, type RunOptions } from "./run.js";
export { type Save, type StepsOptions, Trial } from "./trial.js";
