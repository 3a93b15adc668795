"""Processes forked from one that has already imported PyTorch; a new interpreter takes seconds for that.

There is one server per test process. It runs nothing but imports, so its forks are like new interpreters. A test
about an interpreter that starts from nothing starts a real one.
"""

import multiprocessing
import os
import runpy
import sys
from collections.abc import Mapping, Sequence
from functools import cache
from multiprocessing.connection import wait
from multiprocessing.context import ForkServerContext, ForkServerProcess
from pathlib import Path

import pytest

from headrace.grants import RANK

PRELOADED = "frozen_imports"


@cache
def context() -> ForkServerContext:
    """The context whose processes have the imports; its server has them when this returns."""
    made = multiprocessing.get_context("forkserver")
    with pytest.MonkeyPatch.context() as patch:  # the server does not take over sys.path
        patch.setenv("PYTHONPATH", str(Path(__file__).parent), prepend=os.pathsep)
        made.set_forkserver_preload([PRELOADED])
        first = made.Process(target=_assert_preloaded)
        first.start()
        first.join()
    assert first.exitcode == 0, f"the server has not imported {PRELOADED}"
    return made


def launch_segment(control_file: Path, log_file: Path, ranks: int = 1) -> None:
    """Runs one segment of a check with a forked process per rank; `headrace check` starts a new interpreter for
    each.

    When a rank fails, the others are killed, as by the leader of a gang.
    """
    arguments = [
        (str(control_file), f"{log_file}.{rank}" if rank else str(log_file), rank) for rank in range(ranks)
    ]
    processes = [context().Process(target=_run_segment, args=one) for one in arguments]
    for process in processes:
        process.start()
    waiting = {process.sentinel: process for process in processes}
    while waiting:
        for ended in wait(list(waiting)):
            process = waiting.pop(ended)  # type: ignore[call-overload]  # the sentinels are the keys
            process.join()
            if process.exitcode:
                for other in waiting.values():
                    other.kill()


class Program:
    """A Python program in a forked process, as `python SCRIPT ARGUMENTS` would run it."""

    def __init__(self, command: Sequence[str], *, folder: Path, env: Mapping[str, str], said: Path) -> None:
        """`said` is the file for what it prints, errors included."""
        self._said = said
        self._process: ForkServerProcess = context().Process(
            target=_run_program, args=(list(command), str(folder), dict(env), str(said))
        )
        self._process.start()

    def wait(self, timeout_s: float = 120) -> tuple[int, str]:
        """Its exit status, and what it printed; fails if it takes too long."""
        self._process.join(timeout_s)
        code = self._process.exitcode
        if code is None:
            self._process.kill()
            self._process.join()
        printed = self._said.read_text()
        assert code is not None, f"it takes more than {timeout_s} s; it printed:\n{printed}"
        return code, printed


def _assert_preloaded() -> None:
    """Succeeds if the server has imported what it should."""
    os._exit(0 if PRELOADED in sys.modules else 1)


def _take_output(log_file: str) -> None:
    """From here on this process prints into a file."""
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT | os.O_TRUNC)
    os.dup2(log, 1)
    os.dup2(log, 2)


def _run_segment(control_file: str, log_file: str, rank: int) -> None:
    _take_output(log_file)
    os.environ[RANK] = str(rank)
    from headrace.check.segment import main

    status = main(control_file)
    sys.stdout.flush()
    os._exit(status)  # tearing PyTorch down takes longer than the segment


def _run_program(command: list[str], folder: str, env: dict[str, str], log_file: str) -> None:
    _take_output(log_file)
    os.chdir(folder)
    os.environ.clear()
    os.environ.update(env)
    script = str(Path(folder) / command[0])
    sys.argv = [script, *command[1:]]
    sys.path[:] = [str(Path(script).parent), *(place for place in sys.path if place)]
    code = 1
    try:
        runpy.run_path(script, run_name="__main__")
        code = 0
    except SystemExit as left:
        code = left.code if isinstance(left.code, int) else bool(left.code)
        if isinstance(left.code, str):
            print(left.code, file=sys.stderr)
    except BaseException:  # noqa: BLE001  printed, as an interpreter prints it
        sys.excepthook(*sys.exc_info())
    finally:
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
