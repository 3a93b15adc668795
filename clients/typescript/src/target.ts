/**
 * Where servers are: the addresses that a user writes, and the TLS settings for them.
 *
 * `HOST:PORT`, several replicas as `a:7440,b:7440`, IPv6 as `[::1]:7440`, with `tls://` before the first if they
 * require TLS. A single address may also be a Unix socket, as `unix:/run/headrace.sock`.
 */
import { readFileSync } from "node:fs";
import { homedir } from "node:os";
import { join } from "node:path";

import { HeadraceError, invalid } from "./errors.js";

/** How connections are secured. */
export interface Tls {
  /** The certificate authority to trust, in PEM; the system's when absent. */
  readonly ca?: string | Uint8Array;
  /** The file that contains it, instead of `ca`; HEADRACE_TLS_CA when absent. */
  readonly caFile?: string;
}

/** The servers to which connections are opened. */
export interface Target {
  /** The replicas, in the order in which they are tried. */
  readonly replicas: readonly string[];
  /** Absent for plain text. */
  readonly tls?: Tls;
  /** Reads the address again, if it came from a file that may change. */
  readonly again?: () => Target;
}

export const DEFAULT_ADDRESS = "127.0.0.1:7440";

const REPLICA = /^(\[[0-9A-Fa-f:.%\w]+\]|[\w.-]+):([0-9]{1,5})$/;
const TLS = "tls://";

/**
 * The scheduler to use: `address`, or else `HEADRACE_ADDRESS`, or else that of this home's `headrace up`, or else
 * 127.0.0.1:7440.
 */
export function schedulerTarget(address?: string, tls?: Tls): Target {
  const given = address || process.env["HEADRACE_ADDRESS"];
  if (given) return parseTarget(given, "address", tls);
  const found = homeAddress();
  if (found) return { ...parseTarget(found, "address", tls), again: () => schedulerTarget(undefined, tls) };
  const home = process.env["HEADRACE_HOME"];
  if (home) {
    const remedy = "Start one with `headrace up`, or give a scheduler's address as `address` or in HEADRACE_ADDRESS.";
    throw new HeadraceError({ reason: "UNREACHABLE", problem: `No \`headrace up\` runs in ${home} (HEADRACE_HOME)`, remedy });
  }
  return parseTarget(DEFAULT_ADDRESS, "address", tls);
}

/** The target of an address. Throws InvalidFieldError. */
export function parseTarget(address: string, field: string, tls?: Tls): Target {
  const text = address.trim();
  const bare = text.startsWith(TLS) ? text.slice(TLS.length) : text;
  const secured = bare !== text || tls !== undefined ? { tls: withCa(tls) } : {};
  if (/^unix:.+$/.test(bare)) return { replicas: [bare], ...secured };
  const parts = bare
    .split(",")
    .map((part) => part.trim())
    .map((part) => (secured.tls && part.startsWith(TLS) ? part.slice(TLS.length) : part));
  const replicas = [...new Set(parts.filter(Boolean))];
  for (const replica of replicas.length > 0 ? replicas : [text]) {
    const match = REPLICA.exec(replica);
    const port = Number(match?.[2] ?? 0);
    if (port < 1 || port > 65535) {
      throw invalid(
        field,
        replica,
        "is not an address",
        "Use HOST:PORT, or HOST:PORT,HOST:PORT for several servers. An IPv6 address is in brackets.",
      );
    }
  }
  return { replicas, ...secured };
}

/** Whether every replica is on this machine, so that no secret leaves it. */
export function isLocal(target: Target): boolean {
  return target.replicas.every((replica) => /^(unix:|127\.0\.0\.1:|localhost:|\[::1\]:)/.test(replica));
}

function withCa(tls: Tls | undefined): Tls {
  if (tls?.ca !== undefined) return tls;
  const named = tls?.caFile ?? process.env["HEADRACE_TLS_CA"];
  if (!named) return {};
  try {
    return { ca: readFileSync(named) };
  } catch (error) {
    const field = tls?.caFile === undefined ? "HEADRACE_TLS_CA" : "tls.caFile";
    throw invalid(field, named, `cannot be read: ${(error as Error).message}`, "Name a file in PEM.");
  }
}

/** The content of the home's `address` file; undefined while `headrace up` does not serve from there. */
function homeAddress(): string | undefined {
  const home = process.env["HEADRACE_HOME"] || join(homedir(), ".headrace");
  try {
    return readFileSync(join(home, "address"), "utf8").trim() || undefined;
  } catch {
    return undefined;
  }
}
