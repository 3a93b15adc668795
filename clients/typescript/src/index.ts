/** The client of Headrace: studies, ask and tell, watches and plans. Trials are in `@headrace/client/trial`. */
export { AskedTrial, type AskOptions, type Metrics } from "./ask-tell.js";
export { Client, type Spec } from "./client.js";
export type { CallOptions, ConnectionOptions, Logger } from "./connection.js";
export { HeadraceError, InvalidFieldError, type Reason, type ServerReason, type Violation } from "./errors.js";
export * from "./model.js";
export { collect, type ListOptions } from "./pages.js";
export type { Init, Params, Plain, Value } from "./plain.js";
export {
  Planner,
  type PlanResult,
  type Question,
  type SearchOptions,
  type SearchProgress,
  type TrainingPlan,
} from "./planner.js";
export * from "./spec.js";
export { Study } from "./study.js";
export type { Tls } from "./target.js";
export { Trial } from "./trial-handle.js";
export { hasEnded, type WatchOptions } from "./watch.js";
