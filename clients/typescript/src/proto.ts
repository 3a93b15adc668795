/** The messages of the API, for programs that need what the client does not cover. */
export * from "./gen/headrace/v1/error_pb.js";
export * from "./gen/headrace/v1/event_pb.js";
export * from "./gen/headrace/v1/planner_pb.js";
export * from "./gen/headrace/v1/spec_pb.js";
export * from "./gen/headrace/v1/study_pb.js";
export * from "./gen/headrace/v1/trial_pb.js";
