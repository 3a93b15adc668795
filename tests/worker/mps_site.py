"""A worker on a fake GPU whose MPS is `mps_double.py`, and trials that share the GPU."""

import os
import shutil
import signal
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import pytest
from scripted_scheduler import Stream, until
from worker_site import Site

from headrace.mps import BINARY, PIPE_DIRECTORY, Mode, control_at
from headrace.v1 import event_pb2, worker_pb2
from headrace_worker.mps_control import MpsControl
from headrace_worker.settings import WorkerSettings

HERE = Path(__file__).parent
CARD = """
import os, sys, time
from pathlib import Path
sys.path.insert(0, {here!r})
from mps_client import *
marks = Path(os.environ["MARKS"])
def mark(name, text="x"):
    (marks / (name + ".new")).write_text(str(text))
    (marks / (name + ".new")).rename(marks / name)
def wait(name):
    while not (marks / name).exists():
        time.sleep(0.01)  # between two looks at a file
card = Card()
mark({name!r}, os.getpid())
"""
BESIDE = """
while not (marks / "finish").exists():
    card.launch()
    time.sleep(0.005)  # the work on the card, in flight
    card.sync()
"""
"""A program that trains on and hurts nobody."""


@dataclass
class MpsHome:
    """The double on the PATH, and its pipe directory."""

    bin: Path
    pipe: Path

    @property
    def control(self) -> MpsControl:
        """Its command line, as somebody else than the worker."""
        return MpsControl(self.pipe, "", os.environ)

    def inject(self, text: str) -> None:
        """Makes the daemon fail."""
        (self.bin / "double.json").write_text(text)

    def kill(self) -> None:
        """Kills the control daemon, and not its servers."""
        found = control_at(self.pipe)
        assert found is not None
        os.kill(found.pid, signal.SIGKILL)


def mps_home(monkeypatch: pytest.MonkeyPatch) -> Iterator[MpsHome]:
    """Puts the double on the PATH; whatever it has started ends with the test."""
    root = Path(tempfile.mkdtemp(prefix="hr-mps-"))
    root.chmod(0o755)
    found = MpsHome(root / "bin", root / "pipe")
    found.bin.mkdir()
    (found.bin / BINARY).symlink_to(HERE / "mps_double.py")
    monkeypatch.setenv("PATH", f"{found.bin}{os.pathsep}{os.environ['PATH']}")
    monkeypatch.setenv(PIPE_DIRECTORY, str(found.pipe))
    yield found
    if (left := control_at(found.pipe)) is not None:
        with suppress(ProcessLookupError):
            os.kill(left.pid, signal.SIGTERM)
    shutil.rmtree(root, ignore_errors=True)  # servers end when their folder is gone


@dataclass
class MpsSite(Site):
    """A worker with one fake GPU."""

    fake_gpus: int = 1
    cpu_slots: int | None = 0
    mode: Mode = Mode.ON
    names: dict[str, str] = field(default_factory=dict)

    @property
    def settings(self) -> WorkerSettings:
        return replace(super().settings, mps=self.mode)

    def share(self, name: str, body: str, *, attached: bool = False, **fields: Any) -> worker_pb2.Assign:
        """A trial with a quarter of the GPU; `name` is also the file that appears when it is on the card."""
        start = CARD.format(here=str(HERE), name=name)
        assign = self.assign(
            self.program(start + body, prelude=attached), number=len(self.names), grace_s=0.5, **fields
        )
        assign.grant.milli, assign.grant.memory_bytes = 250, 1 << 30
        self.names[assign.lease.lease_id] = name
        return assign

    async def run(self, stream: Stream, **bodies: str) -> None:
        """Starts trials, and waits until all are on the card."""
        for name, body in bodies.items():
            stream.send(assign=self.share(name, body))
        for name in bodies:
            await self.marked(name)

    async def marked(self, name: str) -> str:
        """Waits for a mark; returns its text."""
        await until((self.marks / name).exists, name)
        return (self.marks / name).read_text()

    def mark(self, name: str) -> None:
        """Tells programs something."""
        (self.marks / name).touch()

    async def ends(self, stream: Stream, count: int) -> dict[str, worker_pb2.Exited]:
        """How the first trials ended, by name."""
        await stream.get("exited", count)
        return {self.names[one.lease.lease_id]: one for one in stream.all("exited")}

    def lease(self, name: str) -> event_pb2.LeaseRef:
        """A trial's lease."""
        found = next(lease_id for lease_id, own in self.names.items() if own == name)
        number = list(self.names).index(found)
        return event_pb2.LeaseRef(lease_id=found, trial=f"studies/s/trials/{number}", attempt=1)


def outcome(exited: worker_pb2.Exited) -> str:
    """The outcome in short."""
    return worker_pb2.ExitOutcome.Name(exited.outcome).removeprefix("EXIT_OUTCOME_")
