/** A real Headrace on this machine, `headrace up`, and the means to hurt it. */
import { type ChildProcess, spawn } from "node:child_process";
import { createWriteStream, mkdtempSync, readdirSync, readFileSync, rmSync } from "node:fs";
import { tmpdir } from "node:os";
import { join } from "node:path";
import { setTimeout as sleep } from "node:timers/promises";

/** The Python of the environment in which Headrace is installed. */
const PYTHON = process.env["HEADRACE_PYTHON"] ?? "python";

/** What runs. */
export interface Site {
  readonly address: string;
  readonly folder: string;
  /** Kills a process that `up` started, `scheduler` or `worker`; `up` starts it again. False where there was none. */
  kill(name: string): boolean;
  stop(): Promise<void>;
}

/** Starts `headrace up` in a folder of its own. */
export async function up(...options: string[]): Promise<Site> {
  const folder = mkdtempSync(join(tmpdir(), "headrace-ts-"));
  const home = join(folder, "home");
  const log = createWriteStream(join(folder, "up.log"));
  await new Promise((resolve) => log.once("open", resolve));
  const args = ["-m", "headrace.cli", "up", "--home", home, "--port", "0", ...options];
  const child = spawn(PYTHON, args, { stdio: ["ignore", log, log], env: { ...process.env, HEADRACE_HOME: home } });
  const address = await until(
    () => read(join(home, "address")),
    child,
    120_000,
    () => read(join(folder, "up.log")),
  );
  return {
    address,
    folder,
    kill: (name) => children(child.pid as number, name).some((pid) => process.kill(pid, "SIGKILL")),
    stop: async () => {
      const ended = new Promise((resolve) => child.once("exit", resolve));
      child.kill("SIGTERM");
      await ended;
      rmSync(folder, { recursive: true, force: true });
    },
  };
}

/** The value, as soon as there is one. */
export async function until<T>(
  find: () => T | undefined,
  child?: ChildProcess,
  ms = 60_000,
  why: () => string | undefined = () => "",
): Promise<T> {
  for (const end = performance.now() + ms; performance.now() < end; await sleep(20)) {
    const found = find();
    if (found) return found;
    if (child && child.exitCode !== null) throw new Error(`it ended with status ${child.exitCode}: ${why()}`);
  }
  throw new Error(`not within ${ms} ms: ${why()}`);
}

function read(path: string): string | undefined {
  try {
    return readFileSync(path, "utf8").trim();
  } catch {
    return undefined;
  }
}

/** The children of a process with a word in the beginning of their command lines. */
function children(parent: number, name: string): number[] {
  return readdirSync("/proc")
    .map(Number)
    .filter((pid) => {
      const stat = pid ? read(`/proc/${pid}/stat`) : undefined;
      const words =
        stat &&
        Number(stat.slice(stat.lastIndexOf(")") + 2).split(" ")[1]) === parent &&
        read(`/proc/${pid}/cmdline`)?.split("\0").slice(0, 5);
      return words && words.some((word) => word.split("/").at(-1)?.startsWith(name));
    });
}
