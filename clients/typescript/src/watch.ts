/**
 * Follows a study over any number of streams, without losing or repeating an event.
 *
 * The only state is the cursor of the last event that was passed on. A stream that breaks is followed by another that
 * starts after it; events that a server repeats are dropped by cursor. A stream that ends cleanly while the study
 * lives (a replica that drains) is followed by another at once. The watch is over when the study has ended and every
 * event up to the study's own cursor was passed on.
 */
import { create } from "@bufbuild/protobuf";

import type { Connection } from "./connection.js";
import type { HeadraceError } from "./errors.js";
import { GetStudyRequestSchema, StudyService, StudyState, WatchStudyRequestSchema } from "./gen/headrace/v1/study_pb.js";
import type { Event, StudyInfo, Update } from "./model.js";
import { studyName } from "./names.js";
import { plain } from "./plain.js";

/** Options for following a study. */
export interface WatchOptions {
  /** Only events with a greater cursor; 0, all, when absent. */
  readonly after?: number;
  /** Ends the watch. */
  readonly signal?: AbortSignal;
  /** Called at every broken connection, before the next one is tried. */
  readonly onBreak?: (error: HeadraceError) => void;
}

const STREAM_MS = 3_600_000;
const STATUS_MS = 3_000;
const GIVE_UP_MS = 300_000;
const WARN_MS = 5_000;

/** Updates until the study has ended. The study in the last update has ended. */
export async function* watch(connection: Connection, study: string, options: WatchOptions = {}): AsyncGenerator<Update, void> {
  const name = studyName(study);
  const position = new WatchPosition(options.after ?? 0);
  const breaks = new Breaks(connection, study, options.onBreak);
  while (!position.done) {
    const request = create(WatchStudyRequestSchema, { name, afterCursor: BigInt(position.cursor) });
    try {
      const { signal } = options;
      for await (const answer of connection.stream(StudyService.method.watchStudy, request, { signal, timeoutMs: STREAM_MS })) {
        breaks.over();
        const { events, study: now } = plain(answer);
        if (now) yield { events: position.accept(events, now), study: now };
        if (position.done) return;
      }
      const asked = create(GetStudyRequestSchema, { name });
      const { study: now } = await connection.once(StudyService.method.getStudy, asked, { signal, timeoutMs: STATUS_MS });
      if (now) position.conclude(plain(now));
      if (!position.done) await connection.sleep(200, signal);
    } catch (thrown) {
      if (connection.isClosed && !options.signal?.aborted) return;
      await connection.sleep(breaks.pauseMs(thrown as HeadraceError, performance.now()), options.signal);
    }
  }
}

/** Whether a study is over. */
export const hasEnded = (study: StudyInfo): boolean =>
  study.state !== StudyState.UNSPECIFIED && study.state !== StudyState.ACTIVE && study.state !== StudyState.PAUSED;

/** The position of a watch. */
export class WatchPosition {
  done = false;
  cursor: number;

  constructor(after: number) {
    this.cursor = after;
  }

  /** The new events of a response. */
  accept(events: readonly Event[], study: StudyInfo): readonly Event[] {
    const fresh = events.filter((event) => event.cursor > this.cursor);
    this.cursor = fresh.at(-1)?.cursor ?? this.cursor;
    // Sent without events only if there are none up to the study's cursor: the last ones were deleted by age.
    if (!events.length) this.cursor = Math.max(this.cursor, study.status?.cursor ?? 0);
    this.conclude(study);
    return fresh;
  }

  /** Takes the state of the study. */
  conclude(study: StudyInfo): void {
    this.done = hasEnded(study) && (study.status?.cursor ?? 0) <= this.cursor;
  }
}

/** How long the connection has been broken, and how long to wait before the next attempt. */
class Breaks {
  #since: number | undefined;
  #delayMs = 100;
  #warned = false;

  constructor(
    private readonly connection: Connection,
    private readonly study: string,
    private readonly onBreak: WatchOptions["onBreak"],
  ) {}

  over(): void {
    this.#since = undefined;
    this.#delayMs = 100;
    this.#warned = false;
  }

  /** Throws the error if retrying is pointless. */
  pauseMs(error: HeadraceError, now: number): number {
    this.#since ??= now;
    const silentMs = now - this.#since;
    if (!error.retryable || silentMs > GIVE_UP_MS) throw error;
    if (this.onBreak) {
      this.onBreak(error);
    } else if (!this.#warned && silentMs >= WARN_MS) {
      this.#warned = true;
      this.connection.logger?.warn(
        `${error.message} Still waiting for study ${this.study}; giving up after ${GIVE_UP_MS / 1000} s.`,
      );
    }
    const delay = this.#delayMs;
    this.#delayMs = Math.min(2_000, delay * 2);
    return delay;
  }
}
