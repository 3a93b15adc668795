"""A worker's home, its programs and its marks; a daemon in this process; trial programs that speak the raw protocol."""

import asyncio
import os
import sys
import textwrap
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
from scripted_scheduler import ScriptedScheduler

from headrace.v1 import event_pb2, spec_pb2, worker_pb2
from headrace_worker import daemon
from headrace_worker.daemon import Daemon
from headrace_worker.settings import WorkerSettings

PRELUDE = """
import json, os, signal, sys, time
import grpc
from pathlib import Path
from headrace.v1 import event_pb2, runtime_pb2, runtime_pb2_grpc
CONTINUE, PAUSE, STOP = 1, 2, 3
channel = grpc.insecure_channel(os.environ["HEADRACE_RUNTIME"])
stub = runtime_pb2_grpc.TrialRuntimeServiceStub(channel)
lease = os.environ["HEADRACE_LEASE_ID"]
me = stub.Attach(runtime_pb2.AttachRequest(lease_id=lease), timeout=60)
sequence = 0
def report(step, save=False, again=False, timeout=60, **metrics):
    global sequence
    folder = ""
    if not again:
        sequence += 1
    if save:
        folder = os.path.join(me.checkpoint_dir, f"{sequence}")
        os.makedirs(folder, exist_ok=True)
        Path(folder, "state.json").write_text(json.dumps({"step": step}))
    request = runtime_pb2.ReportRequest(
        lease_id=lease, sequence=sequence, step=step, metrics=metrics or {"loss": 1.0 / step}, checkpoint_dir=folder)
    return stub.Report(request, timeout=timeout).decision
def leave_if_told(decision):
    if decision.action != CONTINUE:
        sys.exit(0)
def mark(name, text="x"):
    path = Path(os.environ["MARKS"], name)
    path.with_suffix(".new").write_text(str(text))
    path.with_suffix(".new").rename(path)
"""


def lease_id(number: int) -> str:
    """The id of a test's lease. Other test processes on this machine have other ids, because a daemon ends every
    process that has one of its leases in its environment."""
    return f"lease-{number}-{os.getpid()}"


@dataclass
class Site:
    """One worker's home, its programs and its marks."""

    root: Path
    scheduler: ScriptedScheduler
    fake_gpus: int = 0
    cpu_slots: int | None = 2
    in_bubbles: bool = False
    leases: int = 0
    daemons: list[tuple[Daemon, "asyncio.Task[None]"]] = field(default_factory=list)

    @property
    def settings(self) -> WorkerSettings:
        return WorkerSettings(
            name="w1",
            home=self.root / "home",
            schedulers=tuple(self.scheduler.address.split(",")),
            store_url=(self.root / "store").as_uri(),
            cpu_slots=self.cpu_slots,
            fake_gpus=self.fake_gpus,
            stop_grace_s=3.0,
            bubbles=self.in_bubbles,
            bubble_leave_s=0.3,
        )

    @property
    def marks(self) -> Path:
        folder = self.root / "marks"
        folder.mkdir(exist_ok=True)
        return folder

    def program(self, body: str, *, prelude: bool = True) -> list[str]:
        """Writes a trial program; returns its command line."""
        path = self.root / f"program{len(list(self.root.glob('program*')))}.py"
        path.write_text((PRELUDE if prelude else "") + textwrap.dedent(body))
        return [sys.executable, str(path)]

    def assign(
        self,
        command: list[str],
        *,
        slots: tuple[int, ...] = (0,),
        number: int = 0,
        attempt: int = 1,
        milestone: int = 10,
        grace_s: float = 5.0,
        report_timeout_s: float | None = None,
        **fields: Any,
    ) -> worker_pb2.Assign:
        self.leases += 1
        template = spec_pb2.TrialTemplate(
            command=spec_pb2.CommandLine(args=command),
            working_dir=str(self.root),
            env={"MARKS": str(self.marks)},
        )
        template.grace.FromMilliseconds(int(grace_s * 1000))
        if report_timeout_s is not None:
            template.report_timeout.FromMilliseconds(int(report_timeout_s * 1000))
        return worker_pb2.Assign(
            lease=event_pb2.LeaseRef(
                lease_id=lease_id(self.leases), trial=f"studies/s/trials/{number}", attempt=attempt
            ),
            template=template,
            next_milestone=milestone,
            max_steps=27,
            seed=7,
            metric="loss",
            grant=worker_pb2.Grant(slots=slots),
            **fields,
        )

    def start(self) -> Daemon:
        started = Daemon(self.settings)
        self.daemons.append((started, asyncio.create_task(started.run())))
        return started

    async def stop(self) -> None:
        for running, task in self.daemons:
            running.stop()
            running.stop()
            await task
        self.daemons.clear()

    async def leave(self) -> None:
        """Stop what a test leaves running. Its scheduler may have been told to withhold what daemons wait for."""
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(daemon, "_LAST_ACKS_S", 0.1)
            await self.stop()
