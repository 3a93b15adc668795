"""A bundle's process without torch: it speaks the raw protocol, and does what a test writes into its marks."""

import json
from pathlib import Path
from typing import Any

from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2

PROGRAM = """
import json, os, signal, sys, time
import grpc
from pathlib import Path
from headrace.v1 import runtime_pb2, runtime_pb2_grpc
MARKS = Path(os.environ["MARKS"])
CONTINUE, PAUSE, STOP = 1, 2, 3
channel = grpc.insecure_channel(os.environ["HEADRACE_RUNTIME"])
stub = runtime_pb2_grpc.TrialRuntimeServiceStub(channel)
grant = os.environ["HEADRACE_BUNDLE"]
members, waiting, sequence, turn = {}, set(), {}, 0
def mark(name, value):
    path = MARKS / name
    path.with_suffix(".new").write_text(json.dumps(value))
    path.with_suffix(".new").rename(path)
def number(lease):
    return int(members[lease].assign.lease.trial.rpartition("/")[2])
def join(answers):
    for answer in answers:
        lease = answer.assign.lease.lease_id
        members[lease] = answer
        sequence[lease] = 0
        steps[lease] = answer.assign.resume_step
        note(joined=number(lease))
def note(**what):
    with (MARKS / "seen").open("a") as file:
        file.write(json.dumps(what) + "\\n")
steps = {}
first = stub.AttachBundle(runtime_pb2.AttachBundleRequest(grant_id=grant), timeout=60)
join(first.members)
print("training", flush=True)
mark(f"pid-{os.getpid()}", [os.environ["HEADRACE_LEASE_ID"], first.seats])
def report(lease, save=False):
    steps[lease] += 1
    sequence[lease] += 1
    folder = ""
    if save:
        folder = os.path.join(members[lease].checkpoint_dir, str(sequence[lease]))
        os.makedirs(folder)
        Path(folder, "state.json").write_text(json.dumps({"step": steps[lease]}))
    return runtime_pb2.ReportRequest(lease_id=lease, sequence=sequence[lease], step=steps[lease],
        metrics={"loss": 1.0 / steps[lease]}, checkpoint_dir=folder)
def say(reports=(), finished=(), restored=(), again=1):
    global turn
    turn += 1
    waits = not reports and not finished
    request = runtime_pb2.TurnRequest(grant_id=grant, sequence=turn, reports=reports, finished=finished,
        restored=restored, waits=waits)
    answers = [stub.Turn(request, timeout=60) for _ in range(again)]
    assert all(answer == answers[0] for answer in answers)
    for report in reports:
        waiting.add(report.lease_id)
    apply(answers[0])
    return answers[0]
def apply(answer):
    for said in answer.decisions:
        waiting.discard(said.lease_id)
        what = {"decided": number(said.lease_id), "action": said.decision.action, "step": steps[said.lease_id]}
        note(**what, refused=said.refused) if said.refused else note(**what)
        if said.refused or said.decision.action != CONTINUE:
            del members[said.lease_id]
    for lease in answer.gone:
        if lease in members:
            note(gone=number(lease))
            waiting.discard(lease)
            del members[lease]
    join(answer.joined)
    if answer.over:
        note(over=True)
        stub.FinishBundle(runtime_pb2.FinishBundleRequest(grant_id=grant), timeout=60)
        sys.exit(0)
def free():
    return [lease for lease in members if lease not in waiting]
"""

TRAIN = """
while True:
    say([report(lease, save=True) for lease in free()])
    time.sleep(0.01)
"""


class BundleSite:
    """Starts members of one grant, and reads what their process recorded."""

    def __init__(self, site: Site, stream: Stream, body: str = TRAIN, seats: int = 4) -> None:
        self.site, self.stream, self.seats = site, stream, seats
        self.command = site.program(PROGRAM + body, prelude=False)

    def start(
        self, number: int, *, milestone: int = 3, grant: str = "g1", **fields: Any
    ) -> worker_pb2.Assign:
        """Assigns a member."""
        assign = self.site.assign(self.command, number=number, milestone=milestone, **fields)
        assign.grant.id, assign.grant.seats = grant, self.seats
        self.stream.send(assign=assign)
        return assign

    @property
    def seen(self) -> list[dict[str, Any]]:
        """What the process recorded."""
        path = self.site.marks / "seen"
        return [json.loads(line) for line in path.read_text().splitlines()] if path.exists() else []

    async def sees(self, **what: Any) -> None:
        """Wait until the process has recorded this."""

        def noted() -> bool:
            return any(what.items() <= one.items() for one in self.seen)

        await until(noted, f"{what}: {self.seen}")

    def reports(self, assign: worker_pb2.Assign) -> list[worker_pb2.Report]:
        """The reports of a member."""
        return [one for one in self.stream.all("report") if one.lease == assign.lease]

    async def report(self, assign: worker_pb2.Assign, step: int) -> worker_pb2.Report:
        """Waits for the report of a step."""

        def found() -> list[worker_pb2.Report]:
            return [one for one in self.reports(assign) if one.step == step]

        return (await until(found, f"step {step}"))[0]

    def exits(self, assign: worker_pb2.Assign) -> list[worker_pb2.Exited]:
        """The end of a member, if it is known yet."""
        return [one for one in self.stream.all("exited") if one.lease == assign.lease]

    async def exited(self, assign: worker_pb2.Assign) -> worker_pb2.Exited:
        """Waits for the end of a member."""
        return (await until(lambda: self.exits(assign), f"the end of {assign.lease.trial}"))[0]

    async def decide(
        self,
        assign: worker_pb2.Assign,
        step: int,
        action: event_pb2.DecisionAction.ValueType,
        milestone: int = 0,
    ) -> None:
        """Decides on a report that has arrived or will arrive."""
        self.stream.decide(await self.report(assign, step), action, milestone)

    def pids(self) -> list[int]:
        """The processes that attached."""
        return [int(path.name.removeprefix("pid-")) for path in self.site.marks.glob("pid-*")]


def log_of(site: Site, number: int) -> Path:
    """A trial's log."""
    return site.root / f"home/logs/s/{number}.log"


async def started(site: Site, scheduler: ScriptedScheduler, body: str = TRAIN) -> BundleSite:
    """A daemon that is connected, and the program of its bundles.

    Tests decide late on purpose, so heartbeats are rare: after some without a decision a worker opens another
    session.
    """
    scheduler.interval_s = 5.0
    site.start()
    return BundleSite(site, await scheduler.stream(), body)
