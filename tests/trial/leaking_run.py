"""Runs a program of `leaking_modules` in a process of its own, as many trials as it may run there."""

import json
import sys
from dataclasses import dataclass
from pathlib import Path

from forked import context
from leaking_modules import BESIDE, Finder, Leaking

_MODULES = (
    *("os", "sys", "gc", "decimal", "locale", "logging", "multiprocessing"),
    *("resource", "signal", "socket", "tempfile", "threading", "warnings"),
)


@dataclass(frozen=True)
class Result:
    """How it went."""

    status: int | None
    # What `after_trial` returned after each trial.
    reasons: tuple[str, ...] = ()
    # The value of the program's expression before the trials, and after each.
    values: tuple[str, ...] = ()


def run(program: Leaking, folder: Path, trials: int = 2) -> Result:
    """Runs trials in one process until one is its last."""
    for name, source in {"leaking": program.source, **BESIDE}.items():
        (folder / f"{name}.py").write_text(source)
    out = folder.with_name(f"{folder.name}.json")
    words = program.words if program.finder is Finder.SETTING else ""
    process = context().Process(target=_run, args=(str(folder), words, program.libraries, trials, str(out)))
    process.start()
    process.join(120)
    if process.exitcode is None:
        process.kill()
        process.join()
    if not out.exists() or not out.stat().st_size:
        return Result(process.exitcode)
    found = json.loads(out.read_text())
    return Result(process.exitcode, tuple(found["reasons"]), tuple(found["values"]))


def _run(folder: str, same: str, libraries: tuple[str, ...], trials: int, out: str) -> None:
    import gc
    import importlib
    import os

    from headrace.trial.reuse.between import Baseline

    os.chdir(folder)
    sys.path.insert(0, folder)
    for name in libraries:
        importlib.import_module(name)
    leaking = importlib.import_module("leaking")
    names: dict[str, object] = {name: importlib.import_module(name) for name in (*_MODULES, *libraries)}
    names["read_umask"] = _read_umask
    dumps = json.dumps  # which programs replace
    log = os.open(out, os.O_CREAT | os.O_WRONLY)
    gc.freeze()
    values, reasons = [repr(eval(same or "0", names))], []
    baseline = Baseline()
    for _ in range(trials):
        baseline.take()
        leaking.train(None)
        reasons.append(baseline.after_trial())
        values.append(repr(eval(same or "0", names)))
        if reasons[-1]:
            break
    os.write(log, dumps({"reasons": reasons, "values": values}).encode())
    import signal
    from contextlib import suppress

    for task in Path("/proc/self/task").iterdir():
        for child in (task / "children").read_text().split():
            with suppress(OSError):
                os.kill(int(child), signal.SIGKILL)
    os._exit(0)


def _read_umask() -> int:
    import os

    now = os.umask(0)
    os.umask(now)
    return now
