/** The values that users get: the API's messages as plain values (see `plain`). */
import type * as event from "./gen/headrace/v1/event_pb.js";
import type * as spec from "./gen/headrace/v1/spec_pb.js";
import type * as study from "./gen/headrace/v1/study_pb.js";
import type * as trial from "./gen/headrace/v1/trial_pb.js";
import type { Init, Plain } from "./plain.js";

export { DecisionAction } from "./gen/headrace/v1/event_pb.js";
export { AshaArrival, AshaVariant, Goal, Keep, MedianVariant, Processes } from "./gen/headrace/v1/spec_pb.js";
export { StudyState } from "./gen/headrace/v1/study_pb.js";
export { TerminationReason, TrialState } from "./gen/headrace/v1/trial_pb.js";

/** A study, as of the call. */
export type StudyInfo = Plain<study.Study>;
/** A trial, as of the call. */
export type TrialInfo = Plain<trial.Trial>;
/** A stored report. */
export type Report = Plain<study.TrialReport>;
/** One entry of a study's log; `detail.case` is its kind. */
export type Event = Plain<event.Event>;
/** What to do after a report. */
export type Decision = Plain<event.Decision>;
/** The events since the last update, and the study as of the last one or later. */
export interface Update {
  readonly events: readonly Event[];
  readonly study: StudyInfo;
}
/** A trial with everything that happened to it. */
export type TrialStory = Plain<study.ExplainTrialResponse>;
/** What a spec would do. */
export type Preview = Plain<study.PreviewStudyResponse>;
/** A worker as the scheduler sees it. */
export type Worker = Plain<study.WorkerStatus>;
/** An active study's share of the cluster. */
export type StudyShare = Plain<study.StudyShare>;
/** What a study needs and no connected worker has. */
export type Room = Plain<study.FindRoomResponse>;
/** The tags and the note of a study or a trial. */
export type Annotation = Plain<study.AnnotateResponse>;
/** Trials with their curves, in columns. */
export type CurvesPart = Plain<study.ReadCurvesResponse>;
/** How much each parameter matters by one objective. */
export type Importance = Plain<study.Importance>;
/** The trials that are retried. */
export type Retried = Plain<study.RetryTrialsResponse>;
/** Something that a list leaves out because it cannot be shown. */
export type Unshown = Plain<study.Unshown>;
/** A study to create: the fields of `StudySpec`. `studySpec` and its builders create the parts that are long to write. */
export type StudySpecInit = Init<spec.StudySpec>;
