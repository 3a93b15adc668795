"""`python forked_check.py RANKS STEPS SCRIPT MODULE…`: checks a script whose libraries take long to import.

They are imported here, once, and each process of the check is a fork of this one.
"""

import importlib
import os
import signal
import sys
from contextlib import suppress
from pathlib import Path

from headrace.check import render, run_check
from headrace.check.segment import main as segment
from headrace.grants import RANK
from headrace.ports import any_port


def launch(control_file: Path, log_file: Path, ranks: int) -> None:
    """Forks the ranks of one gang, and waits for them; when one fails, the others are killed."""
    port = any_port()
    running = {_fork(control_file, Path(f"{log_file}.{rank}"), rank, ranks, port) for rank in range(ranks)}
    while running:
        pid, status = os.wait()
        running.discard(pid)
        if status:
            for other in running:
                os.kill(other, signal.SIGKILL)


def _fork(control_file: Path, log_file: Path, rank: int, ranks: int, port: int) -> int:
    pid = os.fork()
    if pid:
        return pid
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    named = {RANK: rank, "RANK": rank, "LOCAL_RANK": rank, "WORLD_SIZE": ranks, "LOCAL_WORLD_SIZE": ranks}
    os.environ |= {name: str(value) for name, value in named.items()}
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    status = 1
    with suppress(BaseException):
        status = segment(str(control_file))
    os._exit(status)


if __name__ == "__main__":
    world, count, script, *modules = sys.argv[1:]
    for name in modules:
        importlib.import_module(name)
    if "deepspeed" in modules:
        import deepspeed

        # DeepSpeed would now compile a faster shared-memory all-reduce for a minute; gloo's own is enough here.
        deepspeed.ops.__compatible_ops__.pop("deepspeed_shm_comm", None)
    report = run_check(Path(script), ranks=int(world), steps=int(count), launch=launch)
    print(render(report))
    sys.exit(not report.passed)
