"""`python -m headrace.trial.gang PROGRAM…`: one process per slot, as one trial.

A worker daemon starts this for a study with `processes: per_slot`. It starts the program once per slot with the
variables that torchrun sets (RANK, LOCAL_RANK, WORLD_SIZE, LOCAL_WORLD_SIZE, MASTER_ADDR, MASTER_PORT), so that
`torch.distributed.init_process_group()` needs no arguments, and runs as long as they do. When rank 0 is done,
the others have a moment to end too.

    all run → one fails: a message on its pipe, an exit status, or stopped for a minute
            → a moment (`_SETTLE_S`), until the cause is certain and reported
            → the others are killed, the daemon is told which rank ended the gang and how, this process ends as it did

With `--reuse` at the end of PROGRAM, a gang runs several trials: when each of its ranks offers itself for another
one, as to a worker daemon (`handover`), their leader offers the gang, and passes the next trial on to them.

All or none: a gang never outlives one of its ranks by more than that moment. The daemon supervises this process
as it does any other trial. The errors of other ranks about a missing peer do not count as the cause (`ends`).

Every rank sees all granted devices (`CUDA_VISIBLE_DEVICES`) and uses the one of its LOCAL_RANK.
"""

import ctypes
import json
import os
import select
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from headrace.grants import LAST_WORDS, RANK, WORLD_SIZE
from headrace.ports import any_port
from headrace.trial import job_signals, title
from headrace.trial.ends import End, cause, heard
from headrace.trial.handover import REUSE, Handover, turn_to

_PR_SET_PDEATHSIG = 1
_POLL_S = 0.02
_LEAVE_S = 10.0
_SETTLE_S = 2.0
"""How long a failed rank may take to end by itself, and how long to wait for the cause of an echo."""
STOPPED_S = 60.0
"""How long a rank may be stopped (SIGSTOP, a debugger) while the others wait for it."""
_LOOK_S = 1.0
_DAEMON_GONE = 75


@dataclass(slots=True)
class _Rank:
    number: int
    process: "subprocess.Popen[bytes]"
    words: int
    said: bytes = b""
    listens: bool = True
    end: End | None = None
    stopped_since: float | None = None
    # With reuse: the connection over which it gets its trials, and what it said after the last one.
    line: socket.socket | None = None
    offers: bool = False
    left_behind: str = ""
    kind: str = ""
    expected: Sequence[int] = ()

    def begin(self, variables: Mapping[str, str], folders: Sequence[str]) -> None:
        """Gives it a trial, whose log is our output."""
        assert self.line is not None
        self.offers, self.left_behind = False, ""
        message = {"names": dict(variables), "folders": folders}
        socket.send_fds(self.line, [json.dumps(message).encode()], [1])

    def hear(self) -> None:
        """Records what it said after its trial. What cannot be read is no offer."""
        if self.line is None or self.offers or self.left_behind:
            return
        with suppress(OSError, ValueError, KeyError, TypeError, OverflowError, RecursionError):
            if said := self.line.recv(1 << 16):
                word = json.loads(said)
                self.left_behind, self.kind = str(word["left_behind"]), str(word["kind"])
                self.expected = list(map(int, word["expected"]))
                self.offers = word["waits"] is True

    def look(self, now: float) -> None:
        """Records what the rank reported, and its end.

        Reads its exit status first: anything that it reported before it ended is then on the pipe.
        """
        code = self.process.poll()
        with suppress(BlockingIOError):
            while self.listens:
                piece = os.read(self.words, 1 << 16)
                self.said += piece
                self.listens = bool(piece)
        if self.end is None:
            self.end = heard(self.said, self.number)
        if self.end is None and code not in (None, 0):
            self.end = End(rank=self.number, at=now, code=code)
        elif self.end is not None and self.end.code is None:
            self.end = replace(self.end, code=code)

    def look_whether_stopped(self, now: float) -> None:
        """A rank that is stopped for long ends its gang."""
        if not _is_stopped(self.process.pid):
            self.stopped_since = None
        elif self.stopped_since is None:
            self.stopped_since = now
        elif now - self.stopped_since >= STOPPED_S and self.end is None:
            self.end = End(rank=self.number, at=now, code=-signal.SIGSTOP)


class Gang:
    """The ranks of one trial, and their leader."""

    def __init__(self, program: Sequence[str], world: int, *, reuse: bool = False) -> None:
        port = any_port()  # the rendezvous of rank 0 binds it a moment later
        self._told_to_end = False
        self._ranks = [_start(program, rank, world, port, reuse=reuse) for rank in range(world)]

    @property
    def expected(self) -> list[int]:
        """The ranks' processes, and those that they expect."""
        return [pid for rank in self._ranks for pid in (rank.process.pid, *rank.expected)]

    @property
    def offers(self) -> bool:
        """Whether every rank waits for another trial."""
        return all(rank.offers for rank in self._ranks)

    @property
    def left_behind(self) -> tuple[str, str]:
        """What a trial left behind on one of the ranks, and its kind."""
        found = (
            (f"on rank {one.number}: {one.left_behind}", one.kind) for one in self._ranks if one.left_behind
        )
        return next(found, ("", ""))

    def begin(self, variables: Mapping[str, str], folders: Sequence[str]) -> bool:
        """Gives every rank the gang's trial; False, and they are killed, if one is gone."""
        port = any_port()
        try:
            if all(rank.process.poll() is None for rank in self._ranks):
                for rank in self._ranks:
                    rank.begin({**variables, **_place(rank.number, len(self._ranks), port)}, folders)
                return True
        except OSError:  # it is gone, though not reaped yet
            pass
        self._send(signal.SIGKILL)
        return False

    def release(self) -> None:
        """The ranks that wait for another trial get none, and end."""
        for rank in self._ranks:
            if rank.line is not None:
                rank.line.close()
                rank.line = None

    def terminate(self) -> None:
        """Passes on the daemon's request to end the trial."""
        if not job_signals.from_worker():
            return
        self._told_to_end = True
        self._send(signal.SIGTERM)

    def wait(self) -> int:
        """Waits until no rank is running, or each waits for another trial. Returns the exit status of the rank that
        ended the gang, or else 0."""
        leave_by: float | None = None
        look_at = 0.0
        while True:
            now = time.monotonic()
            for rank in self._ranks:
                rank.look(now)
                rank.hear()
                if now >= look_at:
                    rank.look_whether_stopped(now)
            look_at = now + _LOOK_S if now >= look_at else look_at
            ends = [rank.end for rank in self._ranks if rank.end is not None]
            if ends:
                return self._end(now)
            done = [rank.offers or rank.process.poll() == 0 for rank in self._ranks]
            if all(done):
                if not self.offers:
                    self.release()
                return 0
            if done[0] and leave_by is None:
                leave_by = now + _LEAVE_S
            if leave_by is not None and now > leave_by:
                print("headrace: rank 0 is done; stopping the other ranks", file=sys.stderr)
                self._send(signal.SIGKILL)
                return 0
            select.select([rank.words for rank in self._ranks if rank.listens], [], [], _POLL_S)

    def _end(self, since: float) -> int:
        """Ends all ranks as soon as it is certain which of them failed first."""
        while True:
            now = time.monotonic()
            gone = all(rank.process.poll() is not None for rank in self._ranks)  # before they are checked
            for rank in self._ranks:
                rank.look(now)
            found = cause(rank.end for rank in self._ranks if rank.end is not None)
            certain = not found.is_echo or gone
            if (certain and found.code is not None) or now - since > _SETTLE_S:
                break
            time.sleep(_POLL_S)  # processes are polled, and their messages are read without waiting
        self._send(signal.SIGKILL)
        if self._told_to_end:
            return _as_that_one(found.code or 1)
        print(f"headrace: {found}; stopping the other ranks", file=sys.stderr, flush=True)
        _tell(found)
        return _as_that_one(1 if found.error else found.code or 1)

    def _send(self, number: signal.Signals) -> None:
        for rank in self._ranks:
            if rank.process.poll() is None:
                rank.process.send_signal(number)


def main(program: Sequence[str]) -> int:
    """Runs the program on every rank; returns the exit status of the first that failed, else 0."""
    world = int(os.environ[WORLD_SIZE])
    if program[-2:-1] == [REUSE]:
        return _run_several(program[:-2], world, Handover(int(program[-1])))
    title.show_trial(os.environ, more=f", leads {world} processes")
    job_signals.hold()
    gang = Gang(program, world)
    signal.signal(signal.SIGTERM, lambda *_: gang.terminate())
    return gang.wait()


def _run_several(program: Sequence[str], world: int, handover: Handover) -> int:
    job_signals.hold()
    log = handover.wait()
    gang = Gang(program, world, reuse=True)  # their environment has room for the names of any lease
    signal.signal(signal.SIGTERM, lambda *_: gang.terminate())
    while True:
        os.close(turn_to(log))
        handover.take_names()
        title.show_trial(os.environ, more=f", leads {world} processes")
        if not gang.begin(handover.variables, handover.folders):
            return _as_that_one(-signal.SIGKILL)  # nothing of the trial has begun: it gets another process
        status = gang.wait()
        if status or not gang.offers:
            left_behind, kind = gang.left_behind
            if left_behind:
                handover.end(left_behind, kind)
            handover.close()
            return status
        log = handover.offer(gang.expected)


def die_with_parent() -> None:
    """Called by a rank: the kernel kills it when the gang's leader dies."""
    ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)


def _start(program: Sequence[str], rank: int, world: int, port: int, *, reuse: bool) -> _Rank:
    ours, theirs = os.pipe()
    os.set_blocking(ours, False)
    env = {**os.environ, **_place(rank, world, port), LAST_WORDS: str(theirs)}
    if not reuse:
        with _closing(theirs):
            return _Rank(
                rank, subprocess.Popen(program, env=env, pass_fds=(theirs, *job_signals.descriptors())), ours
            )
    line, its_line = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    line.setblocking(False)
    with _closing(theirs), its_line:
        descriptor = its_line.fileno()
        arguments = [*program, REUSE, str(descriptor)]
        process = subprocess.Popen(
            arguments, env=env, pass_fds=(theirs, descriptor, *job_signals.descriptors())
        )
    return _Rank(rank, process, ours, line=line)


def _place(rank: int, world: int, port: int) -> dict[str, str]:
    """A rank's place in its gang, in the variables that torchrun sets."""
    return {
        RANK: str(rank),
        "RANK": str(rank),
        "LOCAL_RANK": str(rank),
        "WORLD_SIZE": str(world),
        "LOCAL_WORLD_SIZE": str(world),
        "GROUP_RANK": "0",
        "MASTER_ADDR": "127.0.0.1",
        "MASTER_PORT": str(port),
    }


@contextmanager
def _closing(descriptor: int) -> Iterator[None]:
    """Closes a descriptor at the end."""
    try:
        yield
    finally:
        os.close(descriptor)


def _is_stopped(pid: int) -> bool:
    try:
        stat = Path(f"/proc/{pid}/stat").read_text()
    except OSError:
        return False
    return stat.rpartition(")")[2].split()[0] in ("T", "t")


def _tell(end: End) -> None:
    """Reports to the daemon which rank it was. A daemon that does not answer relies on the exit status."""
    if "HEADRACE_RUNTIME" not in os.environ or end.code == _DAEMON_GONE:
        return
    from headrace.trial.cluster import ClusterRuntime  # gRPC only if there is something to report
    from headrace.trial.runtime import DaemonGone, TrialRuntimeError

    runtime = ClusterRuntime(os.environ["HEADRACE_RUNTIME"], os.environ.get("HEADRACE_LEASE_ID", ""))
    with suppress(DaemonGone, TrialRuntimeError):
        runtime.tell_end(end)


def _as_that_one(code: int) -> int:
    """If a rank died of a signal, die of the same one, because it shows whether the machine or the program is to
    blame.
    """
    if code < 0:
        number = signal.SIGKILL if code == -signal.SIGSTOP else signal.Signals(-code)
        if number != signal.SIGKILL:
            signal.signal(number, signal.SIG_DFL)
        os.kill(os.getpid(), number)
    return code


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
