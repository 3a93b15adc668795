"""Four real processes in one gloo group, started once, that run named functions.

A function is named `module:function` and gets keyword arguments; every rank runs it and returns something
that pickles. A rank that raises or dies, or a function that takes too long, fails the call and ends the pool: the
next call starts a new one. So does a call that finds a rank dead.
"""

import importlib
import os
import tempfile
import traceback
import warnings
from contextlib import suppress
from datetime import timedelta
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import forked

SIZE = 4
START_S = 120  # importing torch four times on a busy machine


class RankPool:
    """Runs functions on all ranks."""

    def __init__(self, size: int = SIZE) -> None:
        self.size = size
        self._pipes: list[Connection] = []
        self._processes: list[Any] = []
        self._folder: tempfile.TemporaryDirectory[str]

    def run(self, target: str, *, timeout_s: float = 120, **arguments: object) -> list[Any]:
        """Returns what every rank returned, in the order of ranks."""
        if any(process.exitcode is not None for process in self._processes):
            self.close()
        if not self._processes:
            self._start()
        for pipe in self._pipes:
            with suppress(BrokenPipeError):  # its rank is dead, as its answer will show
                pipe.send((target, arguments))
        answers = [self._answer(rank, f"to {target}", timeout_s) for rank in range(self.size)]
        failures = [f"rank {rank}:\n{text}" for rank, (fine, text) in enumerate(answers) if not fine]
        if failures:
            self.close()
            raise AssertionError("\n".join(failures))
        return [value for _, value in answers]

    def close(self) -> None:
        """Ends the processes."""
        if not self._processes:
            return
        for process in self._processes:
            process.kill()
            process.join()
        self._processes, self._pipes = [], []
        self._folder.cleanup()

    def _answer(self, rank: int, what: str, timeout_s: float) -> Any:
        try:
            if self._pipes[rank].poll(timeout_s):
                return self._pipes[rank].recv()
            text = f"rank {rank} gave no answer {what} within {timeout_s} s"
        except (EOFError, ConnectionResetError):
            self._processes[rank].join()
            text = f"rank {rank} ended with {self._processes[rank].exitcode} and gave no answer {what}"
        self.close()
        raise AssertionError(text)

    def _start(self) -> None:
        context = forked.context()
        self._folder = tempfile.TemporaryDirectory(prefix="hdet-")
        store = Path(self._folder.name) / "store"
        for rank in range(self.size):
            ours, theirs = context.Pipe()
            process = context.Process(target=serve, args=(rank, self.size, str(store), theirs), daemon=True)
            process.start()
            self._pipes.append(ours)
            self._processes.append(process)
        for rank in range(self.size):
            self._answer(rank, "that it has started", START_S)


def serve(rank: int, size: int, store: str, pipe: Connection) -> None:
    """The life of a rank: join the group, then answer calls until it is killed."""
    os.environ["OMP_NUM_THREADS"] = "1"
    import torch
    import torch.distributed as dist

    warnings.simplefilter("error")
    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo", init_method=f"file://{store}", rank=rank, world_size=size, timeout=timedelta(seconds=60)
    )
    pipe.send("ready")
    while True:
        target, arguments = pipe.recv()
        module, _, name = target.partition(":")
        try:
            pipe.send((True, getattr(importlib.import_module(module), name)(**arguments)))
        except BaseException:  # noqa: BLE001  told to the test, whatever it is
            pipe.send((False, traceback.format_exc()))
