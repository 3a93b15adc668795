/** Required parts of an answer. */
import type { Message } from "@bufbuild/protobuf";

import { HeadraceError } from "./errors.js";
import { type Plain, plain } from "./plain.js";

/** A part of an answer, as a plain value. Throws if it is missing, which no server does. */
export function present<T extends Message>(part: T | undefined): Plain<T> {
  if (part !== undefined) return plain(part);
  throw new HeadraceError({ reason: "INTERNAL", problem: "The server's answer lacks a part" });
}
