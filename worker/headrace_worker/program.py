"""A process on granted slots: started, or taken from the standby processes, then watched and ended when it is
time.

It ends by itself, or when its owners say so (`end_in`): SIGTERM after one delay, SIGKILL after another. A later
call can only make the end sooner. A process that is silent for longer than its template allows is reported to its
owners.

Shipped code is unpacked into a separate folder for each process, which is deleted with it. So is its TMPDIR if it
runs as another user. A standby process already has its folders (`own_folders`).

It is over when none of the processes of its group is left.
"""

import asyncio
import signal
from collections.abc import Awaitable, Callable
from functools import partial

from headrace.grants import DEFAULT_GRACE_S
from headrace.v1 import spec_pb2
from headrace_worker import own_folders
from headrace_worker.launch import Launch
from headrace_worker.logs import AttemptLog
from headrace_worker.process import TrialProcess
from headrace_worker.standby import Standbys

AFTER_TERM_S = 5.0
"""The time between SIGTERM and SIGKILL for a process that has already had its grace."""
_NEVER = float("inf")
_LAST_WORD_S = 1.0
"""How long the last word of a process that has exited may take to arrive."""
WhenThereIsRoom = Callable[[Callable[[], None]], Awaitable[None]]
"""Runs work that writes to the disk, as soon as the disk has room."""


def grace_s(template: spec_pb2.TrialTemplate) -> float:
    """How long a trial has to exit when it is told to."""
    return template.grace.ToTimedelta().total_seconds() if template.HasField("grace") else DEFAULT_GRACE_S


def silence_s(template: spec_pb2.TrialTemplate, pace: float = 1.0) -> float:
    """How long a trial may be silent, if it gets this share of the time; infinite if the template sets no limit."""
    if not template.HasField("report_timeout"):
        return _NEVER
    return template.report_timeout.ToTimedelta().total_seconds() / pace


class Program:
    """One process."""

    def __init__(
        self,
        template: spec_pb2.TrialTemplate,
        slots: tuple[int, ...],
        standbys: Standbys,
        *,
        pace: float = 1.0,
        excused: Callable[[], bool],
        silent: Callable[[], None],
        succeeded: Callable[[], bool],
        let_go: Callable[[TrialProcess], Awaitable[None]],
    ) -> None:
        """`pace` is the share of its slots' time that it may expect. `excused` says whether its silence has
        another cause; `silent` is called when it has been silent for too long. `succeeded` says whether it ended its
        trial in a way after which it may run another one. `let_go` takes its processes off their device before they
        are killed."""
        self._silence_s = silence_s(template, pace)
        self._slots = slots
        self._standbys = standbys
        self._excused = excused
        self._silent = silent
        self._succeeded = succeeded
        self._let_go = let_go
        # Set when there is something to reconsider: an earlier deadline, a sign of life.
        self._news = asyncio.Event()
        self._term_at = _NEVER
        self._kill_at = _NEVER
        self._heard_at = 0.0
        self._launch: Launch | None = None
        self._imported = False
        self.process: TrialProcess | None = None
        self.signalled = False
        """Whether the worker told it to end by a signal."""
        self._lived_s = 0.0
        self._attached = False
        # Where it runs, if that is not the folder that its template names.
        self.own_dir = ""
        # How its process was started, if not by its own launch.
        self._stood_by: Launch | None = None
        self.left_behind = ""
        """What the trial left behind, so that the process runs no other one."""
        self._kind = "trial"

    async def run(
        self,
        launch: Launch,
        output: AttemptLog,
        started: Callable[[TrialProcess], Awaitable[None]],
        when_there_is_room: WhenThereIsRoom,
    ) -> int:
        """Starts the process and returns its exit code when its group is gone; 0 if the process offers itself for
        another trial, and all else of its group is gone. Raises `CannotStartError`."""
        kept: Launch | None = None
        try:
            exit_code, process = await self._run(launch, output, started, when_there_is_room)
            if process is not None:
                kept = process.launch
                await self._standbys.keep(process, self._slots)
            return exit_code
        finally:
            for one in (launch, self._stood_by):
                if one is not None and own_folders.has_some(one) and not _share_folders(one, kept):
                    await asyncio.to_thread(own_folders.clear, one)

    async def _run(
        self,
        launch: Launch,
        output: AttemptLog,
        started: Callable[[TrialProcess], Awaitable[None]],
        when_there_is_room: WhenThereIsRoom,
    ) -> tuple[int, TrialProcess | None]:
        """Returns the exit code, and the process if it offers itself for another trial."""
        self._heard_at = _now()
        self._launch = launch
        process = await self._standbys.acquire(launch, self._slots, output)
        if process is not None:
            self._imported, self._stood_by = True, process.launch
            found = await self._live(process, launch, started)
            if self._attached or self.signalled or self._kill_at != _NEVER:
                return found
            # It was killed while it waited, which is not this trial's fault.
            self._imported, self._launch, self._heard_at = False, launch, _now()
        process = await self._start(launch, output, when_there_is_room)
        return await self._live(process, launch, started)

    async def _live(
        self, process: TrialProcess, launch: Launch, started: Callable[[TrialProcess], Awaitable[None]]
    ) -> tuple[int, TrialProcess | None]:
        kept = False
        try:
            self.process = process
            if launch.archive is not None and process.launch is not None:
                self.own_dir = process.launch.working_dir
            began_at = _now()
            await started(process)
            exit_code = await self._supervise(process)
            self._lived_s = _now() - began_at
            kept = exit_code is None
            return exit_code or 0, process if kept else None
        finally:
            if not kept:
                if process.line is not None:
                    process.line.close()
                    self._standbys.spent(self._slots, self._kind)
                await self._let_go(process)
                await process.group_gone()
            self.process = None
            self._launch = None  # a late call prepares nothing
            self._standbys.idle(self._slots)

    async def _start(
        self, launch: Launch, output: AttemptLog, when_there_is_room: WhenThereIsRoom
    ) -> TrialProcess:
        if own_folders.has_some(launch):
            await when_there_is_room(partial(own_folders.make, launch))
        if launch.archive is not None:
            self.own_dir = launch.working_dir  # before it runs: it may attach before it is known to run
        if launch.reuse:
            return await self._standbys.spawn(launch, output)
        return await TrialProcess.spawn(launch, output.file)

    def end_in(self, term_in_s: float, kill_in_s: float) -> None:
        """Ends it with SIGTERM after one delay and SIGKILL after the other; an earlier call may have set it
        sooner."""
        now = _now()
        self._term_at = min(self._term_at, now + term_in_s)
        self._kill_at = min(self._kill_at, now + kill_in_s)
        self._news.set()

    def heard(self) -> None:
        """It showed a sign of life."""
        self._heard_at = _now()
        self._news.set()

    def attached(self) -> None:
        """It asked for its configuration. A standby process has already imported its module."""
        self._attached = True
        self.heard()
        if self._imported:
            self.trains()

    @property
    def waited_s(self) -> float:
        """How long it lived without asking for its configuration; 0 if it asked."""
        return 0.0 if self._attached else self._lived_s

    def trains(self) -> None:
        """It trains now: start the standby process that the next trial here will use."""
        launch, self._launch = self._launch, None
        if launch is not None:
            self._standbys.prepare(launch, self._slots)

    async def _supervise(self, process: TrialProcess) -> int | None:
        """Waits for the leader's end, and signals it when it is time. Returns its exit code; None if it offers itself
        for another trial."""
        exited = asyncio.create_task(process.wait())
        offers = asyncio.create_task(self._offers(process))
        try:
            while not exited.done():
                if offers.done() and offers.result():
                    return None
                self._news.clear()
                now = _now()
                if self._silence_ends_at() <= now:
                    self._silent()
                if min(self._kill_at, self._term_at) <= now and not self.signalled:
                    self.signalled = True
                    await self._let_go(process)
                    continue
                if self._kill_at <= now:
                    process.send(signal.SIGKILL)
                    self._kill_at = self._term_at = _NEVER
                elif self._term_at <= now:
                    process.send(signal.SIGTERM)
                    process.send(signal.SIGCONT)  # a stopped process would not notice the SIGTERM
                    self._term_at = _NEVER
                next_at = min(self._kill_at, self._term_at, self._silence_ends_at())
                news = asyncio.create_task(self._news.wait())
                try:
                    await asyncio.wait(
                        {exited, news} if offers.done() else {exited, news, offers},
                        timeout=None if next_at == _NEVER else max(0.0, next_at - now),
                        return_when=asyncio.FIRST_COMPLETED,
                    )
                finally:
                    news.cancel()
            await asyncio.wait({offers}, timeout=_LAST_WORD_S)  # it may have said why it ended
            return exited.result()
        finally:
            exited.cancel()
            offers.cancel()
            await asyncio.wait({offers})  # it must not listen any more when the connection is closed

    async def _offers(self, process: TrialProcess) -> bool:
        """Whether the process may run another trial; waits for its word, if its study reuses processes."""
        if process.line is None:
            return False
        offer = await process.line.heard()
        if offer is not None and offer.left_behind:
            self.left_behind, self._kind = offer.left_behind, offer.kind
        if offer is not None and offer.waits and self._may_stay():
            others = await asyncio.to_thread(process.others, offer.expected)
            if not others and self._may_stay():
                return True
            if others:
                running = "a process" if len(others) == 1 else f"{len(others)} processes"
                self.left_behind = f"it left {running} running: end them before the function returns"
                self._kind = "left"
        process.line.close()  # a process that waits for its next trial ends now
        return False

    def _may_stay(self) -> bool:
        return self._succeeded() and not self.signalled

    def _silence_ends_at(self) -> float:
        return _NEVER if self._excused() else self._heard_at + self._silence_s


def _share_folders(launch: Launch, kept: Launch | None) -> bool:
    """Whether a process that stays has the folders of this launch."""
    return kept is not None and (launch.working_dir, launch.quarters) == (kept.working_dir, kept.quarters)


def _now() -> float:
    return asyncio.get_running_loop().time()
