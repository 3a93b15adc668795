/**
 * Resource names of the wire, and the bare names that people use.
 *
 * `studies/digits/trials/3` is trial 3 of study `digits`. A resource name is accepted where a bare one is expected.
 */
import { randomUUID } from "node:crypto";

/** `digits` for both `digits` and `studies/digits`. */
export const studyId = (name: string): string => name.replace(/^studies\//, "");

/** `studies/digits` for both. */
export const studyName = (name: string): string => `studies/${studyId(name)}`;

/** `studies/digits/trials/3`. */
export const trialName = (study: string, number: number): string => `${studyName(study)}/trials/${number}`;

/** A new request's id; its repeats carry the same one. */
export const requestId = (): string => randomUUID().replaceAll("-", "");
