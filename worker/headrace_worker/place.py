"""What all attempts of a daemon share: its devices and folders, the store, the outbox, and the standby processes."""

import asyncio
import os
import uuid
from collections.abc import Awaitable, Callable, Coroutine, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from headrace.checkpoints import CheckpointStore
from headrace.sources import SourceFile
from headrace.v1 import spec_pb2, trial_pb2, worker_pb2
from headrace_worker.bubble_slots import BubbleSlots
from headrace_worker.courier import Courier
from headrace_worker.device_health import DeviceHealth
from headrace_worker.exits import Verdict, in_ended_job, on_failed_device, perhaps_of_device
from headrace_worker.import_shares import ImportShares
from headrace_worker.launch import Launch, launch_of
from headrace_worker.logs import AttemptLog
from headrace_worker.memory import KernelKills
from headrace_worker.mps import Mps
from headrace_worker.process import TrialProcess
from headrace_worker.programs import Prepared, Programs, owner_of
from headrace_worker.quarters import Estate, Quarters
from headrace_worker.retention import PruneOrder
from headrace_worker.retries import Retries
from headrace_worker.run_as import OtherUser
from headrace_worker.running_code import ToldCode, may_name_files, named_files
from headrace_worker.standby import Standbys


@dataclass(frozen=True, slots=True, kw_only=True)
class Place:
    """The daemon, as an attempt sees it."""

    devices: tuple[worker_pb2.Device, ...]
    bubbles: BubbleSlots
    # Where trials find the daemon: the current address of the socket.
    runtime: Callable[[], str]
    # Set when what an earlier daemon left is cleaned up.
    ready: asyncio.Event
    # Makes again what can be; says why no trial can run here now, or nothing.
    stands: Callable[[], Coroutine[Any, Any, str]]  # Any: Coroutine's own
    log_dir: Path
    scratch_dir: Path
    environ: Mapping[str, str]
    # The machine's cores that trials may use.
    cores: int
    pass_env: tuple[str, ...]
    trial_umask: int | None
    # The user that trials run as; None: the daemon's user.
    user: OtherUser | None
    # Where such trials live; None: there is no other user.
    estate: Estate | None
    # Where checkpoints of such trials go before they are in the store.
    taken_dir: Path
    store: CheckpointStore
    # Waits until it is known what the store is; raises `StoreUnavailableError` if it is not there.
    require_store: Callable[[], Coroutine[Any, Any, None]]  # Any: a coroutine's own parameters
    courier: Courier
    standbys: Standbys
    programs: Programs
    retries: Retries
    kernel_kills: KernelKills
    # Says which failure of a device ended a program on these slots that failed with this output, or nothing.
    device_failure: Callable[[Sequence[int], str], Awaitable[str]]
    # The control daemon of MPS, and the trials that share a GPU through it.
    mps: Mps
    # What is known about the health of the devices.
    health: DeviceHealth
    # A report with a checkpoint is in the outbox.
    saved: Callable[[str, int, PruneOrder], None]
    # An upload continues in its thread although nobody needs it any more.
    abandoned: Callable[["asyncio.Task[trial_pb2.CheckpointRef]", str], None]
    # Whether the job that the worker is was sent SIGTERM, as each trial then was.
    job_ends: Callable[[], bool]
    # An attempt has ended, and its part of the log goes into the store.
    keep_log: Callable[[worker_pb2.Assign, AttemptLog], None]
    # What the scheduler has been told about the code that runs here.
    told_code: ToldCode = field(default_factory=ToldCode)
    import_shares: ImportShares = field(default_factory=ImportShares)

    def launch_of(
        self, assign: worker_pb2.Assign, prepared: Prepared, shared: Mapping[str, str] | None = None
    ) -> Launch:
        """What to start for an assignment, with what MPS needs if it `shared` its GPU; raises `ValueError` if its
        template names no program."""
        own = "" if prepared.archive is None else str(self.scratch_dir / f"code-{uuid.uuid4().hex[:12]}")
        return launch_of(
            assign,
            devices=(*self.devices, *self.bubbles.devices),
            gates=self.bubbles.gates,
            runtime=self.runtime(),
            log_dir=self.log_dir,
            environ=self.environ,
            cores=self.cores,
            pass_env=self.pass_env,
            umask=self.trial_umask,
            user=self.user,
            quarters=self._quarters(assign),
            archive=prepared.archive,
            working_dir=own,
            made_python=prepared.python,
            shared=shared,
        )

    def _quarters(self, assign: worker_pb2.Assign) -> Quarters | None:
        if self.estate is None or self.user is None:
            return None
        return self.estate.quarters(owner_of(assign), self.user.uid)

    async def named_files(self, template: spec_pb2.TrialTemplate, args: Sequence[str]) -> list[SourceFile]:
        """The files that a study names, as far as its trials may read them; see `running_code`."""
        if not may_name_files(template):
            return []
        may_read = () if self.user is None else (self.user.may_read,)
        return await asyncio.to_thread(named_files, template, args, *may_read)

    def hand_over(self, path: Path) -> None:
        """Gives trials a file or a folder, if they run as another user."""
        if self.user is not None:
            self.user.give(path)

    def open_log(self, path: Path, header: str) -> AttemptLog:
        """Opens a trial's log, which belongs to the trial."""
        log = AttemptLog.open(path, header)
        if self.user is not None:
            os.fchown(log.file.fileno(), self.user.uid, self.user.gid)
        return log

    def take_over(self, folder: Path, root: Path, into: Path) -> Path:
        """A checkpoint below a trial's `root`. If trials run as another user, it is moved to `into`, out of the
        trial's reach. Raises `CheckpointInvalidError`."""
        return folder if self.user is None else self.user.claim(folder, root=root, into=into)

    async def let_go(self, client: str, process: TrialProcess) -> None:
        """Takes a client of MPS off its GPU, with whatever it has started, before it is killed."""
        if self.mps.has(client):
            if not process.runs:
                self.mps.exits(client)
            others = await asyncio.to_thread(process.others, ())
            runs = process.runs
            if pids := [process.pid, *others] if runs else others:
                await self.mps.let_go(client, pids, exited=not runs)

    async def judged(self, verdict: Verdict, slots: Sequence[int], words: str, client: str = "") -> Verdict:
        """The verdict, after a check of the devices and of MPS, whose `client` it was: nobody is charged for their
        failures, nor for another trial's."""
        shared = await self.mps.judged(client, verdict, words)
        if verdict.outcome != worker_pb2.EXIT_OUTCOME_FAILED:
            if verdict.outcome != worker_pb2.EXIT_OUTCOME_LOST:
                self.health.ended_well(slots)
            return shared
        if self.job_ends():
            return in_ended_job(verdict)
        if gone := self.bubbles.why_gone(slots):
            return Verdict(outcome=worker_pb2.EXIT_OUTCOME_RELEASED, error=gone, exit_code=verdict.exit_code)
        if defect := await self.device_failure(slots, words):
            return on_failed_device(verdict, defect)
        if shared.outcome != verdict.outcome:
            return shared
        return perhaps_of_device(verdict, *self.health.suspect(slots, words))
