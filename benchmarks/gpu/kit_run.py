"""Runs the tests that need a GPU and then the benchmarks, most valuable first, and keeps a record of the card.

    python benchmarks/gpu/kit_run.py [--minutes 8] [--out FOLDER]

`make gpu` and the kit's `run.sh` call it. Each part has a time limit, and a part that exceeds it is ended. The record
is written anew, in one rename, whenever a part has found something: a run that is cut off at any moment has written
what it measured. Without a GPU the tests' twins and the benchmarks run on the CPU in small sizes, to show that the
code works; their record is named no-card.json, and is never a card's.

The card's settings (compute mode, MIG, clocks) are never changed.
"""

import argparse
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from types import FrameType

import kit_card
from kit_lines import FILE, read
from kit_parts import PARTS, Part, limit_s
from kit_record import Record, Result, State, as_json, file_name, table, whole

from headrace_services.up import launch

ROOT = Path(__file__).resolve().parents[2]
RECORDS = ROOT / "benchmarks" / "gpu" / "results"
UNTRACKED = ROOT / "benchmarks" / "results" / "gpu"
POLL_S = 0.2
GRACE_S = 10.0
"""Between asking a part to end and killing it; a part has a service to stop and a control daemon to quit."""
CLOSING_S = 5.0
"""Kept for the end of the run."""
SAID_LINES = 8


class CutOffError(Exception):
    """A signal ended the run."""


def main() -> int:
    """Returns 1 if something failed or a signal ended the run; a part that is out of time is no failure."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("--minutes", type=float, default=8.0, help="for everything (default: 8)")
    parser.add_argument("--since", type=float, default=time.time(), help=argparse.SUPPRESS)
    parser.add_argument("--out", type=Path, help="where the record and the logs go")
    options = parser.parse_args()
    if options.minutes <= 0:
        parser.error(f"--minutes {options.minutes:g}: give more than 0")
    deadline = time.monotonic() + options.minutes * 60 - (time.time() - options.since)
    with cut_off_by_signals():
        try:
            card, software = kit_card.look()
        except (RuntimeError, subprocess.TimeoutExpired, CutOffError) as error:
            print(f"Nothing was measured. {error}", file=sys.stderr)
            return 1
        started = datetime.now(UTC).isoformat(timespec="seconds")
        notes = tuple(filter(None, [kit_card.unused()])) if card is None else ()
        record = Record(card=card, software=software, started=started, minutes=options.minutes, notes=notes)
        logs = options.out or UNTRACKED
        runner = Runner(record, (options.out or (RECORDS if card else UNTRACKED)) / file_name(card), logs)
        print(
            f"On {card.name if card else 'no GPU: the CPU part only'}, for {options.minutes:g} minutes.",
            flush=True,
        )
        runner.run(deadline)
    print("\n" + "\n".join(table(runner.record)))
    print(f"wrote {runner.path}")
    return 0 if runner.record.state in ("complete", "out of time") else 1


@contextmanager
def cut_off_by_signals() -> Iterator[None]:
    """While the block runs, SIGTERM, SIGINT and SIGHUP raise CutOffError, once."""
    which = (signal.SIGTERM, signal.SIGINT, signal.SIGHUP)

    def on_signal(number: int, _: FrameType | None) -> None:
        for one in which:
            signal.signal(one, signal.SIG_IGN)
        raise CutOffError(signal.Signals(number).name)

    before = {one: signal.signal(one, on_signal) for one in which}
    try:
        yield
    finally:
        for one, handler in before.items():
            signal.signal(one, handler)


class Runner:
    """A run, with its record so far."""

    def __init__(self, record: Record, path: Path, logs: Path) -> None:
        self.record, self.path = record, path
        self._logs = logs
        self._device = "cpu" if record.card is None else "cuda"

    def run(self, deadline: float) -> None:
        """Runs all parts; a signal ends the run, and the record says which."""
        self._logs.mkdir(parents=True, exist_ok=True)
        try:
            for number, part in enumerate(PARTS):
                left_s = deadline - CLOSING_S - time.monotonic()
                self._part(part, limit_s(PARTS[number:], left_s))
            ended, notes = whole(self.record.parts), self.record.notes
        except CutOffError as error:
            ended, notes = "cut off", (*self.record.notes, f"ended by {error}")
        self.record = replace(self.record, state=ended, notes=notes)
        self._save()

    def _part(self, part: Part, limit: float) -> None:
        """Runs a part within its limit."""
        result = Result(name=part.name, asks=part.asks, state="running", limit_s=round(limit, 1))
        if limit == 0:
            self._keep(replace(result, state="out of time", why="not started: too little time was left"))
            return
        print(f"\n{part.name}: {part.asks} (at most {limit:.0f} s)", flush=True)
        with tempfile.TemporaryDirectory(prefix="hr-gpu-", ignore_cleanup_errors=True) as scratch:
            lines, log = Path(scratch, "lines"), self._logs / f"{part.name}.log"
            environ = {**os.environ, FILE: str(lines), "TMPDIR": scratch, "TRITON_CACHE_DIR": scratch}
            environ["OMP_NUM_THREADS"] = "1"
            if part.is_tests:  # with the plugins that the tests need, and none of the image
                environ["PYTEST_DISABLE_PLUGIN_AUTOLOAD"] = "1"
                environ["PYTHONPATH"] = os.pathsep.join(
                    filter(None, [str(ROOT / "tests"), environ.get("PYTHONPATH")])
                )
            began = time.monotonic()
            with log.open("wb") as output:
                process = subprocess.Popen(
                    launch.command(self._command(part)),
                    cwd=ROOT,
                    env=environ,
                    stdout=output,
                    stderr=output,
                    stdin=subprocess.DEVNULL,
                    start_new_session=True,
                )
            state: State = "cut off"
            try:
                while process.poll() is None and time.monotonic() < began + limit:
                    time.sleep(POLL_S)  # its lines are in a file, which says nothing by itself
                    self._keep(self._so_far(result, lines, began))
                state = {None: "out of time", 0: "complete"}.get(process.returncode, "failed")
            finally:
                end(process)
                found = self._so_far(result, lines, began)
                failed = [line for line in found.lines if line.outcome == "failed"]
                if state == "failed" and not failed:
                    found = replace(found, why=tail(log))
                if state != "cut off" and failed:
                    state = "failed"
                self._keep(replace(found, state=state))

    def _command(self, part: Part) -> tuple[str, ...]:
        program = str(ROOT / part.program)
        if not part.is_tests:
            return (sys.executable, program, "--device", self._device, *part.options)
        # A new PyTorch may warn of something that ours does not, which is no error here.
        plugins = ("tiers", "pytest_asyncio.plugin", "pytest_timeout", "no:cacheprovider")
        options = (
            *(word for one in plugins for word in ("-p", one)),
            "-W",
            "default",
            "-q",
            "-s",
            "--tb",
            "short",
        )
        mark = "not gpu" if self.record.card is None else "gpu"
        beside = (
            "--confcutdir",
            str(Path(program).parent),
            "--rootdir",
            str(ROOT),
            "-c",
            str(ROOT / "pyproject.toml"),
        )
        return (sys.executable, "-m", "pytest", *options, *beside, "-m", mark, program)

    def _so_far(self, result: Result, lines: Path, began: float) -> Result:
        return replace(result, lines=tuple(read(lines)), took_s=round(time.monotonic() - began, 1))

    def _keep(self, result: Result) -> None:
        """Adds a result to the record, or replaces the last one of the same part; saves it if lines are new."""
        known = next((one for one in self.record.parts if one.name == result.name), None)
        others = tuple(one for one in self.record.parts if one is not known)
        self.record = replace(self.record, parts=(*others, result))
        if known is None or (known.state, known.lines) != (result.state, result.lines):
            for line in result.lines[len(known.lines) if known else 0 :]:
                print(f"  {line}", flush=True)
            self._save()

    def _save(self) -> None:
        """Writes the record; one of an earlier run stays until this one has found something."""
        if self.record.state == "running" and not any(part.lines for part in self.record.parts):
            return
        self.path.parent.mkdir(parents=True, exist_ok=True)
        new = self.path.with_suffix(".new")
        new.write_text(json.dumps(as_json(self.record), indent=1) + "\n", encoding="utf-8")
        new.replace(self.path)


def end(process: "subprocess.Popen[bytes]") -> None:
    """Ends a part and everything in its group: it is asked first, as Ctrl-C does."""
    for which in (signal.SIGINT, signal.SIGKILL):
        with suppress(ProcessLookupError):
            os.killpg(process.pid, which)
        with suppress(subprocess.TimeoutExpired):
            process.wait(GRACE_S)


def tail(log: Path) -> str:
    """The end of a log."""
    return "\n".join(log.read_text(encoding="utf-8", errors="replace").splitlines()[-SAID_LINES:])


if __name__ == "__main__":
    sys.exit(main())
