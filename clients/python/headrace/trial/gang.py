"""`python -m headrace.trial.gang PROGRAM…`: one process a slot, as one trial.

What a worker daemon starts where a study asks for `processes: per_slot`. It starts the program once for each slot
with the variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so
that `torch.distributed.init_process_group()` needs no arguments, and lives as long as they do. All or none: when one
rank dies, the others are killed, and this process ends as that one did, so that the daemon, which supervises it as
it does any other trial, draws the same conclusions. When rank 0 is done, the others have a moment to end too.

Every rank sees all granted devices (`CUDA_VISIBLE_DEVICES`) and takes that of its LOCAL_RANK.
"""

import ctypes
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Sequence

from headrace.grants import RANK, WORLD_SIZE
from headrace.trial import title

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_LEAVE_S = 10.0


def main(program: Sequence[str]) -> int:
    """Runs the program on every rank; returns the exit status of the first that failed, else 0."""
    world = int(os.environ[WORLD_SIZE])
    title.show_trial(os.environ, more=f", leads {world} processes")
    with socket.socket() as probe:  # a free port; the rendezvous of rank 0 binds it a moment later
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    ranks = [_start(program, rank, world, port) for rank in range(world)]
    signal.signal(signal.SIGTERM, lambda *_: _end(ranks, signal.SIGTERM))
    return _wait(ranks)


def _start(program: Sequence[str], rank: int, world: int, port: int) -> "subprocess.Popen[bytes]":
    env = {
        **os.environ,
        RANK: str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }
    return subprocess.Popen(program, env=env)


def die_with_parent() -> None:
    """Called by a rank: the kernel kills it when the gang's leader dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _wait(ranks: "list[subprocess.Popen[bytes]]") -> int:
    leave_by: float | None = None
    while True:
        codes = [rank.poll() for rank in ranks]
        failed = next((code for code in codes if code not in (None, 0)), None)
        if failed is not None:
            _end(ranks, signal.SIGKILL)
            return _as_that_one(failed)
        if all(code == 0 for code in codes):
            return 0
        if codes[0] == 0 and leave_by is None:
            leave_by = time.monotonic() + _LEAVE_S
        if leave_by is not None and time.monotonic() > leave_by:
            print("headrace: rank 0 is done; the other ranks are ended", file=sys.stderr)
            _end(ranks, signal.SIGKILL)
            return 0
        time.sleep(_POLL_S)


def _as_that_one(code: int) -> int:
    """A rank that died of a signal: die of the same one, for it says whether the machine or the program is to blame."""
    if code < 0:
        if -code != signal.SIGKILL:
            signal.signal(-code, signal.SIG_DFL)
        os.kill(os.getpid(), -code)
    return code


def _end(ranks: "list[subprocess.Popen[bytes]]", number: signal.Signals) -> None:
    for rank in ranks:
        if rank.poll() is None:
            rank.send_signal(number)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
