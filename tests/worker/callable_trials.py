"""Trials of one callable on slot 0, one after the other, which record what they see."""

import json
import textwrap
from typing import Any

import psutil
from scripted_scheduler import Stream, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2

STOP = event_pb2.DECISION_ACTION_STOP
NUMBERS = iter(range(10_000))

PROGRAM = """
import json, os, random, sys, time
from pathlib import Path
IMPORTED = {"pid": os.getpid(), "at": time.time()}
MARKS = Path(os.environ["MARKS"])
VERSION = 1
print("importing")
Path(MARKS, f"imported-{os.getpid()}").touch()

def train(t):
    seen = {
        "imported": IMPORTED,
        "version": VERSION,
        "began": time.time(),
        "pid": os.getpid(),
        "environ": dict(os.environ),
        "lease in /proc": [
            entry for entry in Path("/proc/self/environ").read_bytes().decode().split(chr(0))
            if entry.startswith(("HEADRACE_LEASE_ID=", "HEADRACE_TRIAL="))
        ],
        "cwd": os.getcwd(),
        "argv": sys.argv,
        "random": random.random(),
        "group": os.getpgid(0) == os.getpid() == os.getsid(0),
        "open": sorted(os.readlink(f"/proc/self/fd/{n}") for n in (0, 1, 2)),
        "params": dict(t.params),
        "main": sys.modules["__main__"].__spec__.name,
    }
    print("training")
    path = MARKS / str(t.number)
    path.with_suffix(".new").write_text(json.dumps(seen))
    path.with_suffix(".new").rename(path)
    for step in t.steps():
        t.report(loss=1.0)
"""


class Trials:
    """Runs trials of one callable, one after the other, on slot 0."""

    def __init__(self, site: Site, stream: Stream) -> None:
        self.site, self.stream = site, stream
        self.write(PROGRAM)

    def write(self, program: str) -> None:
        (self.site.root / "study_module.py").write_text(textwrap.dedent(program))

    def assign(self, **changes: Any) -> worker_pb2.Assign:
        assign = self.site.assign(["unused"], number=next(NUMBERS), milestone=1)
        assign.template.callable = "study_module:train"
        for name, value in changes.items():
            setattr(assign.template, name, value)
        return assign

    def imported(self) -> int:
        """How many processes imported the module."""
        return len(list(self.site.marks.glob("imported-*")))

    async def begin(self, **changes: Any) -> dict[str, Any]:
        """Start a trial and return what it recorded; it waits at its first report."""
        assign = self.assign(**changes)
        reports = len(self.stream.all("report"))
        self.stream.send(assign=assign)
        await self.stream.get("report", reports + 1)
        return self.recorded(assign)

    def recorded(self, assign: worker_pb2.Assign) -> dict[str, Any]:
        """What a trial recorded; it has reported."""
        path = self.site.marks / assign.lease.trial.rpartition("/")[2]
        return {"assign": assign, **json.loads(path.read_text())}

    async def end(self) -> worker_pb2.Exited:
        """End the running trial."""
        exits = len(self.stream.all("exited"))
        self.stream.decide(self.stream.all("report")[-1], STOP)
        exited: worker_pb2.Exited = await self.stream.get("exited", exits + 1)
        return exited

    async def ready(self, *, but: set[int]) -> int:
        """Wait until another process has imported the module; return its process id."""

        def others() -> list[int]:
            pids = [int(path.name.rpartition("-")[2]) for path in self.site.marks.glob("imported-*")]
            return [pid for pid in pids if pid not in but and psutil.pid_exists(pid)]

        pids: list[int] = await until(others, "a process that stands by")
        return pids[0]
