/**
 * Resource names in messages, and the bare names that people use.
 *
 * `studies/digits/trials/3` is trial 3 of study `digits`. A resource name is also accepted where a bare one is
 * expected.
 */
import { randomUUID } from "node:crypto";

/** `digits` for both `digits` and `studies/digits`. */
export const studyId = (name: string): string => name.replace(/^studies\//, "");

/** `studies/digits` for both. */
export const studyName = (name: string): string => `studies/${studyId(name)}`;

/** `studies/digits/trials/3`. */
export const trialName = (study: string, number: number): string => `${studyName(study)}/trials/${number}`;

/** The id of a new request; its repeats carry the same id. */
export const requestId = (): string => randomUUID().replaceAll("-", "");
