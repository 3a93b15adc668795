/**
 * The driver of the conformance suite (tests/conformance/README.md): commands as lines of JSON on stdin, answers on
 * stdout. It checks nothing.
 */
import { createInterface } from "node:readline";
import { setTimeout as sleep } from "node:timers/promises";

import { fromJson, type JsonValue } from "@bufbuild/protobuf";
import { Code, ConnectError } from "@connectrpc/connect";

import {
  type AskedTrial,
  Client,
  collect,
  DecisionAction,
  HeadraceError,
  InvalidFieldError,
  Planner,
  type Study,
  type StudyInfo,
  StudyState,
  TerminationReason,
  type TrialInfo,
  TrialState,
} from "../src/index.js";
import { plain } from "../src/plain.js";
import { PlanQuestionSchema, StudySpecSchema } from "../src/proto.js";

type Json = Record<string, unknown>;
// The harness sends what its README says; a driver does not check it.
type Args = any; // eslint-disable-line @typescript-eslint/no-explicit-any

interface Command {
  readonly id: number;
  readonly op: string;
  readonly client?: string;
  readonly args?: Args;
  readonly timeout_s?: number;
}

/** A command under way. */
interface Call {
  readonly args: Args;
  readonly options: { signal: AbortSignal; timeoutMs?: number };
  readonly client: Client;
  readonly study: Study;
  item(item: Json): void;
}

const clients = new Map<string, Client>();
const asked = new Map<number, AskedTrial>();
const running = new Map<number, AbortController>();

const operations: Record<string, (call: Call) => Promise<Json>> = {
  hello: async () => ({ client: "typescript", version: "0.1.0", lacks: {} }),
  cancel: async ({ args }) => (running.get(args.id)?.abort(), {}),

  create_study: async ({ client, args, options }) => {
    const study = await client.createStudy(args.study, fromJson(StudySpecSchema, args.spec), options);
    return shownStudy(await study.status());
  },
  get_study: async ({ study, options }) => shownStudy(await study.status(options)),
  pause_study: async ({ study, options }) => shownStudy(await study.pause(options)),
  resume_study: async ({ study, options }) => shownStudy(await study.resume(options)),
  stop_study: async ({ study, options }) => shownStudy(await study.stop("", options)),
  delete_study: async ({ study, options }) => (await study.delete(options), {}),
  list_studies: async ({ client, options }) => ({ studies: (await collect(client.studies(options))).map(shownStudy) }),
  add_trials: async ({ study, args, options }) => ({ trials: (await study.addTrials(args.parameters, options)).map(shownTrial) }),
  get_trial: async ({ study, args, options }) => shownTrial(await study.trial(args.trial).info(options)),
  stop_trial: async ({ study, args, options }) => shownTrial(await study.trial(args.trial).stop("", options)),
  list_trials: async ({ study, args, options }) => {
    const states = (args.states ?? []).map((name: keyof typeof TrialState) => TrialState[name]);
    return { trials: (await collect(study.trials({ ...options, states }))).map(shownTrial) };
  },
  list_reports: async ({ study, options }) => ({
    reports: (await collect(study.reports(options))).map(({ trialNumber, step, metrics }) => ({
      trial: trialNumber,
      step,
      metrics,
    })),
  }),
  watch: async ({ study, args, options, item }) => {
    for await (const { events, study: now } of study.watch({ signal: options.signal, after: args.after ?? 0 })) {
      const kinds = events.map(({ detail }) => snake(detail.case ?? "unknown"));
      item({ cursors: events.map(({ cursor }) => cursor), kinds, study: shownStudy(now) });
    }
    return {};
  },

  suggest: async ({ study, args, options }) => {
    const found = await study.ask({
      clientId: args.client_id,
      leaseMs: args.lease_s && args.lease_s * 1000,
      signal: options.signal,
    });
    if (found === undefined) return { asked: null, done: true };
    const number = asked.size + 1;
    asked.set(number, found);
    return { asked: number, trial: shownTrial(found.info), next_milestone: found.nextMilestone, done: false };
  },
  report: async ({ args, options }) => {
    const metrics = Object.fromEntries(Object.entries(args.metrics).map(([name, value]) => [name, Number(value)]));
    const decision = await held(args).report(args.step, metrics, { ...options, checkpointUri: args.checkpoint_uri ?? "" });
    return { action: named(DecisionAction, decision.action), next_milestone: decision.nextMilestone };
  },
  keep_alive: async ({ args, options }) => {
    const controller = new AbortController();
    options.signal.addEventListener("abort", () => controller.abort());
    const timer = setTimeout(() => controller.abort(), args.seconds * 1000);
    await held(args)
      .keepAlive(controller.signal)
      .finally(() => clearTimeout(timer));
    return {};
  },
  complete: async ({ args, options }) => shownTrial(await held(args).complete({ ...options, error: args.error })),
  release: async ({ args, options }) => shownTrial(await held(args).release(options)),
  loop: async ({ study, args, options }) => {
    const counts = { reports: 0, stale: 0 };
    const began = performance.now();
    const loops = Array.from({ length: args.loops }, () => loop(study, args, options.signal, counts));
    await Promise.all(loops);
    return { ...counts, seconds: (performance.now() - began) / 1000 };
  },

  plan: async ({ args, options, item }) => {
    const planner = new Planner({ address: args.address, ...tls(args) });
    try {
      const { schedule, mode, ...others } = plain(fromJson(PlanQuestionSchema, args.options ?? {}));
      const question = { ...others, schedule, mode, model: args.model, cluster: args.cluster };
      const onProgress = ({ solved, tuples }: { solved: number; tuples: number }): void => item({ solved, tuples });
      const { plan, complete } = await planner.plan(question, { signal: options.signal, onProgress });
      const degrees = Object.fromEntries(Object.entries(plan.degrees ?? {}).map(([name, value]) => [snake(name), value]));
      return { iteration_s: plan.iterationS, degrees, complete };
    } finally {
      planner.close();
    }
  },
};

async function loop(study: Study, args: Args, signal: AbortSignal, counts: { reports: number; stale: number }): Promise<void> {
  for await (const one of study.askAll({ leaseMs: args.lease_s && args.lease_s * 1000, signal })) {
    try {
      for (let step = one.step + 1; !one.ended; step += 1) {
        if (args.pause_s) await sleep(args.pause_s * 1000);
        await one.report(
          step,
          { loss: Number(one.params["x"]) + 1 / step },
          { signal, checkpointUri: `mem:/${one.number}/${step}` },
        );
        counts.reports += 1;
      }
    } catch (error) {
      if (!(error instanceof HeadraceError && error.reason === "LEASE_STALE")) throw error;
      counts.stale += 1;
    }
  }
}

function connect(name: string, args: Args): Json {
  const seconds = (value: number | undefined): number | undefined => value && value * 1000;
  const patience = { timeoutMs: seconds(args.timeout_s), connectTimeoutMs: seconds(args.connect_timeout_s) };
  const given = Object.fromEntries(Object.entries({ ...patience, token: args.token }).filter(([, value]) => value !== undefined));
  clients.set(name, new Client({ address: args.address, ...tls(args), ...given }));
  return {};
}

const tls = (args: Args) => (args.ca ? { tls: { caFile: args.ca } } : {});

function disconnect(name: string): Json {
  clients.get(name)?.close();
  clients.delete(name);
  return {};
}

async function carryOut({ id, op, client = "", args = {}, timeout_s }: Command): Promise<void> {
  const say = (answer: Json): void => void process.stdout.write(`${JSON.stringify({ id, ...answer }, finite)}\n`);
  const controller = new AbortController();
  running.set(id, controller);
  try {
    if (op === "connect") return say({ ok: connect(client, args) });
    if (op === "disconnect") return say({ ok: disconnect(client) });
    const connection = clients.get(client) as Client;
    const options = { signal: controller.signal, ...(timeout_s === undefined ? {} : { timeoutMs: timeout_s * 1000 }) };
    const call = {
      args,
      options,
      client: connection,
      study: connection?.study(args.study ?? ""),
      item: (item: Json) => say({ item }),
    };
    const operation = operations[op];
    if (operation === undefined) return say({ broken: `there is no operation ${op}` });
    say({ ok: await operation(call) });
  } catch (error) {
    say(
      error instanceof HeadraceError
        ? { error: shownError(error) }
        : { broken: error instanceof Error ? error.stack : String(error) },
    );
  } finally {
    running.delete(id);
  }
}

function shownStudy(info: StudyInfo): Json {
  const { pending = 0, running: active = 0, paused = 0, resumed = 0, terminated = 0 } = info.status ?? {};
  return {
    name: info.name.replace("studies/", ""),
    state: named(StudyState, info.state),
    detail: info.detail,
    cursor: info.status?.cursor ?? 0,
    trials: pending + active + paused + resumed + terminated,
    best: info.status?.best?.score ?? null,
  };
}

function shownTrial(info: TrialInfo): Json {
  return {
    number: info.number,
    state: named(TrialState, info.state),
    step: info.step,
    value: info.value ?? null,
    params: info.parameters ?? {},
    reason: info.terminationReason ? named(TerminationReason, info.terminationReason) : "",
    checkpoint_uri: info.checkpoint?.uri ?? "",
    checkpoint_step: info.checkpoint?.step ?? 0,
  };
}

const OWN_CODES: Record<string, string> = {
  UNREACHABLE: "UNAVAILABLE",
  DEADLINE: "DEADLINE_EXCEEDED",
  CANCELLED: "CANCELLED",
  UNSUPPORTED: "UNIMPLEMENTED",
  INVALID_FIELD: "INVALID_ARGUMENT",
};

function shownError(error: HeadraceError): Json {
  const own = OWN_CODES[error.reason];
  const told =
    error.cause instanceof ConnectError
      ? snake(Code[error.cause.code] ?? "Unknown")
          .slice(1)
          .toUpperCase()
      : "UNKNOWN";
  const violations = error instanceof InvalidFieldError ? error.violations : [];
  return {
    code: own ?? told,
    reason: own && error.reason !== "INVALID_FIELD" ? "" : error.reason,
    message: error.problem,
    remedy: error.remedy,
    violations: violations.map(({ field, value = "", message, remedy = "" }) => ({ field, value, message, remedy })),
    type: error.name,
  };
}

const held = (args: Args): AskedTrial => asked.get(args.asked) as AskedTrial;
const snake = (name: string): string => name.replace(/[A-Z]/g, (letter) => `_${letter.toLowerCase()}`);
const named = (names: Record<number, string>, value: number): string => names[value] ?? "UNKNOWN";
const finite = (_: string, value: unknown): unknown =>
  typeof value === "number" && !Number.isFinite(value) ? String(value) : value;

for await (const line of createInterface({ input: process.stdin }))
  void carryOut(JSON.parse(line) as Command & { args: JsonValue });
process.exit(0);
