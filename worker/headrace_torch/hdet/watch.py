"""A watch over the ranks of a job: it ends a job that stands still, within its own time limit, and names rank and
step.

Without it a rank that is a step ahead, or frozen, keeps all others in a collective until the process group's timeout,
which is half an hour by default and names no cause.

    publish   each rank has a thread that writes its pulse into the process group's store, every `beat`
    look      a rank whose main thread stands still reads the others' pulses; a job that trains reads nothing
    judge     `headrace_torch.hdet.stall`: when all ranks stand still for longer than the limit, the first rank to see
              it writes the verdict, so that all report the same
    end       a rank that waits at a sync point raises `StallError`. One that is inside a collective cannot be reached
              from Python: it says where it stands and why it ends, to the leader of its gang too. Then its groups are
              aborted, and if that does not free it, the process ends with the status 70, as NCCL's own watchdog
              ends it

The limit is `timeout_s` more than the slowest interval between sync points so far. At a sync point ranks meet
through a counter in the store before the first collective, so most stalls end with an exception.

The threads trust their own clocks only for durations; no clock is compared with another's.
"""

import atexit
import itertools
import os
import sys
import sysconfig
import threading
import time
import weakref
from collections.abc import Sequence
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from time import monotonic
from typing import Literal

import torch
import torch.distributed as dist

from headrace_torch.hdet.errors import StallError
from headrace_torch.hdet.stacks import Line, formatted, stack_of
from headrace_torch.hdet.stall import Pulse, Seen, State, stalled

TIMEOUT_S = 60.0
EXIT_STATUS = 70
GRACE_S = 2.0
"""How long an aborted collective may take to return."""
_WAITS = ("torch/distributed", "torch/autograd", "torch/nn/parallel/distributed.py")
"""Files of torch in which a rank waits for others."""
_live: "weakref.WeakSet[Watch]" = weakref.WeakSet()


class Watch:
    """One rank's watch over a controller's or scheduler's ranks. All ranks make one, with the same name."""

    def __init__(self, ranks: Sequence[int], *, rank: int, name: str, timeout_s: float) -> None:
        """Starts with the first `step`."""
        self._ranks, self._rank = tuple(ranks), rank
        self._timeout_s = timeout_s
        self._beat_s = min(5.0, timeout_s / 8)
        self._store = dist.distributed_c10d.PrefixStore(f"headrace/hdet/{name}", _default_store())
        self._thread: threading.Thread | None = None
        self._main = 0
        self._stream: torch.cuda.Stream | None = None
        self._stop = threading.Event()
        weakref.finalize(self, self._stop.set)
        self._state: State = "trains"
        self._step = self._sync = 0
        self._beats = itertools.count(1)
        self._moves = 0
        self._last_place: object = None
        self._used_s = 0.0
        self._moved_at = self._interval_at = monotonic()
        self._slowest_s = 0.0
        self._heard: dict[int, tuple[Pulse, float, float]] = {}
        self._looking_since: float | None = None
        self._looked_at = monotonic()
        self._heard_verdict: str | None = None
        self.verdict: str | None = None

    def step(self, step: int) -> None:
        """Says how many optimizer steps this rank has taken; called by the thread that trains."""
        self._step = step
        if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
            self._stream = torch.cuda.current_stream()
        if self._thread is None:
            self._main = threading.get_ident()
            self._interval_at = monotonic()
            self._thread = threading.Thread(
                target=_watch,
                args=(weakref.ref(self), self._stop, self._beat_s),
                name="hdet-watch",
                daemon=True,
            )
            self._thread.start()
            _live.add(self)

    def meet(self, sync: int) -> None:
        """Waits until all ranks have reached a sync point.

        Raises:
            StallError: the ranks stand still; the text is the same on all.
        """
        now = monotonic()
        self._slowest_s = max(self._slowest_s, now - self._interval_at)
        self._sync, self._state = sync, "waits"
        try:
            came, go = f"came/{sync}", f"go/{sync}"
            self._store.set(str(self._rank), _packed(self._pulse()))
            if self._store.add(came, 1) == len(self._ranks):
                self._store.set(go, "1")
                for key in (f"came/{sync - 1}", f"go/{sync - 1}"):
                    self._store.delete_key(key)
            pause = 0.0002
            while not self._store.check([go]):
                if self.verdict is not None:
                    raise StallError(self.verdict)
                time.sleep(pause)
                pause = min(pause * 1.5, 0.02)
        except dist.DistError as lost:
            raise StallError(
                self._heard_verdict
                or f"rank {self._rank} waits at sync point {sync} after step {self._step}, and the process "
                "group's store is gone: the process that owns it (usually rank 0) has ended; look for its error"
            ) from lost
        finally:
            self._state = "trains"
            self._interval_at = monotonic()

    def look(self) -> bool:
        """One beat of the thread: publishes, and judges if this rank stands still. Returns whether to continue."""
        if not dist.is_initialized():
            return False
        pulse, now = self._pulse(), monotonic()
        if now - self._looked_at > 4 * self._beat_s + 1:  # this process was stopped meanwhile
            self._heard.clear()
            self._looking_since = None
            self._moved_at = now
        self._looked_at = now
        self._store.set(str(self._rank), _packed(pulse))
        still_s = now - self._moved_at
        if still_s < 2 * self._beat_s:
            self._heard.clear()
            self._looking_since = None
            return True
        if self._store.check(["verdict"]):
            return self._end(self._store.get("verdict").decode())
        self._looking_since = self._looking_since or now
        seen = {rank: self._seen(rank, now) for rank in self._ranks if rank != self._rank}
        seen[self._rank] = Seen(pulse=pulse, silent_s=0.0, still_s=still_s)
        standing_since = self._moved_at
        bound_s = self._timeout_s + max(self._slowest_s, standing_since - self._interval_at)
        if (text := stalled(seen, bound_s=bound_s)) is None:
            return True
        return self._end(self._store.compare_set("verdict", "", text).decode())

    def leave(self) -> None:
        """Says that this rank's program has ended."""
        self._stop.set()
        if self._thread is not None and dist.is_initialized():
            self._state = "ended"
            with suppress(Exception):  # the rank that held the store may have left already
                self._store.set_timeout(timedelta(seconds=2))
                self._store.set(str(self._rank), _packed(self._pulse()))

    def _pulse(self) -> Pulse:
        stack = stack_of(self._main)
        place: object = ("waits", self._step, self._sync)
        if self._state == "trains" and stack:
            place = (stack, self._step)
        if place != self._last_place or (stack and self._works()):
            self._last_place = place
            self._moves += 1
            self._moved_at = monotonic()
        where, blocked = _place(stack)
        if not blocked and monotonic() - self._moved_at >= 2 * self._beat_s:
            blocked = self._waits_for_device()
        return Pulse(
            beat=next(self._beats),
            moves=self._moves,
            state=self._state,
            step=self._step,
            sync=self._sync,
            place=where,
            blocked=blocked,
        )

    def _works(self) -> bool:
        """Whether the main thread, which must be alive, has used the processor since the last beat.

        A loop in Python may be seen at the same place every time. With CUDA, a waiting thread may use the
        processor, too.
        """
        on_cuda = torch.cuda.is_initialized()  # type: ignore[no-untyped-call]
        if self._state != "trains" or on_cuda or not hasattr(time, "pthread_getcpuclockid"):
            return False
        before, self._used_s = self._used_s, time.clock_gettime(time.pthread_getcpuclockid(self._main))
        return self._used_s - before > 0.05 * self._beat_s

    def _waits_for_device(self) -> bool:
        """Whether the device has unfinished work.

        With NCCL a rank waits for a collective wherever its program next needs the device.
        """
        with suppress(Exception):  # a device in trouble raises here
            return self._stream is not None and not self._stream.query()
        return True

    def _seen(self, rank: int, now: float) -> Seen:
        """Reads a rank's pulse, and how long it has been unchanged, counted from when this rank started to look."""
        assert self._looking_since is not None
        if not self._store.check([str(rank)]):
            return Seen(pulse=None, silent_s=now - self._looking_since, still_s=now - self._looking_since)
        pulse = _unpacked(self._store.get(str(rank)).decode())
        before = self._heard.get(rank)
        beat_at = now if before is None or before[0].beat != pulse.beat else before[1]
        moved_at = now if before is None or before[0].moves != pulse.moves else before[2]
        self._heard[rank] = (pulse, beat_at, moved_at)
        return Seen(pulse=pulse, silent_s=now - beat_at, still_s=now - moved_at)

    def _end(self, text: str) -> Literal[False]:
        """Ends this rank: by an exception if its main thread waits for it, else with the process."""
        self._heard_verdict = text
        waits, standing = self._state == "waits", self._last_place
        if not waits:
            self._tell(text, formatted(stack_of(self._main)))
        time.sleep(
            3 * self._beat_s
        )  # so that the others read it before this rank's end cuts their connections
        self.verdict = text
        if waits:
            return False
        with suppress(Exception):  # an old torch has no abort, and a group may be gone
            dist.group.WORLD.abort()  # type: ignore[union-attr]
        time.sleep(GRACE_S)
        self._pulse()
        if self._last_place == standing:
            sys.stdout.flush()
            sys.stderr.flush()
            os._exit(EXIT_STATUS)
        return False

    def _tell(self, text: str, stack: str) -> None:
        """Says where this rank stands, then why it ends: an end without an exception is reported by its last line."""
        print(
            f"{stack}headrace_torch.hdet: rank {self._rank} ends: {text}",
            file=sys.stderr,
            flush=True,
        )
        if (
            ends := sys.modules.get("headrace.trial.ends")
        ) is not None:  # it is a trial, in which everything is installed
            ends.speak(error=f"StallError: {text}", traceback=stack)


def _watch(watch: "weakref.ref[Watch]", stop: threading.Event, beat_s: float) -> None:
    """The thread; it does not keep alive a watch that nobody else holds."""
    while True:
        one = watch()
        if one is None:
            return
        try:
            if not one.look():
                return
        except Exception:  # noqa: BLE001  the store is gone: the job is at its end, or its first rank is dead
            if not dist.is_initialized() or one.verdict is not None:
                return
        del one
        if stop.wait(beat_s):
            return


def _place(stack: Sequence[Line]) -> tuple[str, bool]:
    """Where a thread is in the user's program, and whether it is inside a collective or a backward pass.

    Ranks that wait for an answer by other means (one for a scheduler, the others for that rank) are at one place
    in the program, in different libraries; so the libraries do not count.
    """
    places = sysconfig.get_paths()
    libraries = [places["stdlib"], places["purelib"], places["platlib"], str(Path(torch.__file__).parent)]
    packages = (sys.modules.get(name) for name in ("headrace", "headrace_torch"))
    libraries += [str(Path(found.__file__).parent) for found in packages if found and found.__file__]
    blocked = False
    for call in stack:
        if not call.file.startswith((*libraries, "<frozen")):
            return _told(call), blocked
        blocked |= any(part in call.file for part in _WAITS)
    return _told(stack[0]) if stack else "an unknown place", blocked


def _told(call: Line) -> str:
    return f"{Path(call.file).name}:{call.line} in {call.function}"


def _packed(pulse: Pulse) -> str:
    return "\n".join(str(getattr(pulse, name)) for name in Pulse.__slots__)


def _unpacked(text: str) -> Pulse:
    beat, moves, state, step, sync, place, blocked = text.split("\n")
    known: dict[str, State] = {"trains": "trains", "waits": "waits", "ended": "ended"}
    return Pulse(
        beat=int(beat),
        moves=int(moves),
        state=known[state],
        step=int(step),
        sync=int(sync),
        place=place,
        blocked=blocked == "True",
    )


def _default_store() -> dist.distributed_c10d.Store:
    """The store that the process group was made with; torch has no public name for it."""
    return dist.distributed_c10d._get_default_store()


@atexit.register
def _leave() -> None:
    for watch in list(_live):
        watch.leave()
