"""A worker under attack by one of its trials: the other trial, on the other slot, finishes unharmed.

Each attack is a program on slot 0 of a real daemon. Beside it an honest trial trains on slot 1. All its reports
must arrive and be answered soon, the daemon's memory and disk usage must stay bounded, and the slot of the attack
must be usable again.
"""

import asyncio
import os
import signal
import textwrap
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest
from daemon_process import DaemonProcess, children, memory_bytes
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker import reports

pytestmark = pytest.mark.full

FINISHED = worker_pb2.EXIT_OUTCOME_FINISHED
FAILED = worker_pb2.EXIT_OUTCOME_FAILED
LOST = worker_pb2.EXIT_OUTCOME_LOST
RELEASED = worker_pb2.EXIT_OUTCOME_RELEASED
STEPS = 20
ANSWERED_WITHIN_S = 3.0
GROWTH_BYTES = 100 << 20

HONEST = f"""
slowest = 0.0
while not Path(os.environ["MARKS"], "attack").exists():
    time.sleep(0.01)
for step in range(1, {STEPS} + 1):
    began = time.monotonic()
    report(step, save=step % 5 == 0)
    slowest = max(slowest, time.monotonic() - began)
    time.sleep(0.05)
mark("slowest", slowest)
"""

RAW = """
import socket, threading
address = os.environ["HEADRACE_RUNTIME"].removeprefix("unix:")
def connection():
    raw = socket.socket(socket.AF_UNIX)
    raw.settimeout(10)
    raw.connect(address)
    return raw
def said(call):
    try:
        call()
        return "OK"
    except grpc.RpcError as error:
        return error.code().name
"""


@dataclass
class Attacked:
    """A daemon with an attack on slot 0 and an honest trial on slot 1."""

    site: Site
    stream: Stream
    daemon: asyncio.subprocess.Process
    attack: worker_pb2.Assign
    honest: worker_pb2.Assign
    memory_before: int

    async def exited(self, assign: worker_pb2.Assign) -> worker_pb2.Exited:
        """Waits for the end of a lease."""

        def found() -> Any:
            return [e for e in self.stream.all("exited") if e.lease == assign.lease]

        return (await until(found, f"the end of {assign.lease.trial}", 60.0))[0]

    async def unharmed(self) -> None:
        """Wait for the honest trial's end, and check that it got everything that it is due."""
        exited = await self.exited(self.honest)
        assert exited.outcome == FINISHED, exited
        reports = [r for r in self.stream.all("report") if r.lease == self.honest.lease]
        assert [r.step for r in reports] == list(range(1, STEPS + 1))
        assert [r.step for r in reports if r.checkpoint.uri] == [5, 10, 15, 20]
        assert float((self.site.marks / "slowest").read_text()) < ANSWERED_WITHIN_S
        assert self.daemon.returncode is None
        grown = memory_bytes(self.daemon) - self.memory_before
        assert grown < GROWTH_BYTES, f"the daemon grew by {grown >> 20} MiB"
        assert "Traceback" not in (self.site.root / "daemon.log").read_text()

    async def slot_is_free_again(self) -> None:
        """Run one more trial on the slot of the attack."""
        after = self.site.assign(self.site.program("report(1)"), slots=(0,), number=9)
        self.stream.send(assign=after)
        assert (await self.exited(after)).outcome == FINISHED
        assert not [c for c in children(self.daemon) if c.status() == psutil.STATUS_ZOMBIE]

    def log(self) -> str:
        return (self.site.root / "home/logs/s/0.log").read_text(errors="replace")


@pytest.fixture
def attacked(site: Site, scheduler: ScriptedScheduler, daemons: DaemonProcess) -> Any:
    """Starts the attack when the honest trial is ready for it."""

    async def begin(program: str, **fields: Any) -> Attacked:
        daemon = await daemons.start()
        stream = await scheduler.stream()
        body = RAW + 'mark("attack")\n' + textwrap.dedent(program)
        attack = site.assign(site.program(body), milestone=10**9, **fields)
        honest = site.assign(site.program(HONEST), slots=(1,), number=1, milestone=STEPS + 1)
        stream.send(assign=honest)
        await asyncio.sleep(0.3)
        memory = memory_bytes(daemon)
        stream.send(assign=attack)
        return Attacked(site, stream, daemon, attack, honest, memory)

    return begin


async def test_huge_reports(attacked: Any) -> None:
    it = await attacked("""
        big = {f"{n:0200d}": 1.0 for n in range(30_000)}
        for _ in range(10):
            print(said(lambda: report(1, **big)))
        request = runtime_pb2.FinishRequest(lease_id=lease, error="e" * (2 << 20))
        print(said(lambda: stub.Finish(request, timeout=60)))
    """)
    await it.unharmed()
    exited = await it.exited(it.attack)
    assert exited.log_tail == "RESOURCE_EXHAUSTED\n" * 11
    await it.slot_is_free_again()


async def test_ten_thousand_metrics(attacked: Any) -> None:
    it = await attacked("""
        try:
            report(1, **{f"m{n}": 1.0 for n in range(10_000)})
        except grpc.RpcError as error:
            print(error.code().name, error.details())
    """)
    await it.unharmed()
    exited = await it.exited(it.attack)
    assert "INVALID_ARGUMENT" in exited.log_tail
    assert not [r for r in it.stream.all("report") if r.lease == it.attack.lease]


async def test_a_report_a_microsecond(attacked: Any) -> None:
    it = await attacked("""
        from collections import Counter
        said, waiting = Counter(), []
        until = time.monotonic() + 4
        number = 0
        while time.monotonic() < until:
            number += 1
            request = runtime_pb2.ReportRequest(lease_id=lease, sequence=number, step=1, metrics={"loss": 1.0})
            waiting.append(stub.Report.future(request, timeout=30))
            if len(waiting) > 3000:
                for call in waiting:
                    said[call.code().name] += 1
                waiting.clear()
        for call in waiting:
            said[call.code().name] += 1
        print(number > 1000, *sorted(said))
    """)
    await it.unharmed()
    exited = await it.exited(it.attack)
    enough, *codes = exited.log_tail.split()
    assert enough == "True"
    assert {"OK", "RESOURCE_EXHAUSTED"} <= set(codes) <= {"OK", "RESOURCE_EXHAUSTED", "UNAVAILABLE"}


async def test_calls_for_a_rank_that_the_trial_does_not_have(attacked: Any) -> None:
    it = await attacked("""
        calls = [stub.Report.future(runtime_pb2.ReportRequest(
            lease_id=lease, sequence=n, step=1, rank=1), timeout=60) for n in range(2000)]
        print({call.code().name for call in calls} - {"UNAVAILABLE"})
    """)
    await it.unharmed()
    assert (await it.exited(it.attack)).log_tail == "{'INVALID_ARGUMENT'}\n"


@pytest.mark.smoke
async def test_garbage_on_the_socket(attacked: Any) -> None:
    it = await attacked("""
        kept = []
        for n in range(300):
            raw = connection()
            try:
                begin = b"PRI * HTTP/2.0\\r\\n\\r\\nSM\\r\\n\\r\\n" if n % 2 else b""
                raw.sendall(begin + os.urandom(1 << 14))
            except OSError:
                pass
            kept.append(raw)
        print("sent")
    """)
    await it.unharmed()
    assert (await it.exited(it.attack)).outcome == FINISHED
    await it.slot_is_free_again()


async def test_connections_that_say_nothing(attacked: Any) -> None:
    """They are closed after a moment, so that they do not use up the daemon's descriptors."""
    it = await attacked("""
        kept = [connection() for _ in range(500)]
        for raw in kept:
            while raw.recv(1 << 16):  # the daemon's own greeting, and then the end
                pass
        print("all closed")
    """)
    await it.unharmed()
    assert (await it.exited(it.attack)).log_tail == "all closed\n"
    assert psutil.Process(it.daemon.pid).num_fds() < 200


@pytest.mark.parametrize("environment", ["inherited", "cleared"])
async def test_children_that_keep_everything_open(attacked: Any, environment: str) -> None:
    """Nobody waits for the end of a pipe or a connection: the trial ends when its process ends."""
    it = await attacked(f"""
        raw = connection()
        if os.fork() == 0:
            os.setsid()
            for held in (raw.fileno(), 1, 2):
                os.set_inheritable(held, True)
            clean = {{**os.environ}} if {environment!r} == "inherited" else {{}}
            mark("child", os.getpid())
            os.execve("/bin/sleep", ["sleep", "60"], clean)
        while not Path(os.environ["MARKS"], "child").exists():
            time.sleep(0.01)
        os._exit(0)
    """)
    await until((it.site.marks / "child").exists, "the child is up")
    child = psutil.Process(int((it.site.marks / "child").read_text()))
    try:
        exited = await asyncio.wait_for(it.exited(it.attack), 60)
        assert exited.outcome == FINISHED
        await it.unharmed()
        await it.slot_is_free_again()
        if environment == "inherited":
            assert not child.is_running() or child.status() == psutil.STATUS_ZOMBIE
    finally:
        if child.is_running():
            child.kill()


async def test_a_log_without_end(attacked: Any) -> None:
    it = await attacked("""
        line = b"x" * 1023 + b"\\n"
        os.write(1, b"the first line\\n")
        for _ in range(200):
            os.write(1, line * 1024)
        os.write(1, b"the last line\\n")
    """)
    await it.unharmed()
    exited = await it.exited(it.attack)
    assert exited.log_tail.endswith("the last line\n")
    path = it.site.root / "home/logs/s/0.log"
    assert path.stat().st_size <= 65 << 20
    assert "the first line\n" in it.log()[:200]
    assert "bytes left out: a log holds" in it.log()


@pytest.mark.parametrize("instead", ["os.mkfifo(path)", "os.symlink('/dev/full', path)", "pass"])
async def test_a_log_that_its_trial_replaces(attacked: Any, instead: str) -> None:
    it = await attacked(f"""
        path = {str(Path("home/logs/s/0.log"))!r}
        print("before", flush=True)
        os.unlink(path)
        {instead}
        print("after", flush=True)
    """)
    exited = await it.exited(it.attack)
    assert exited.log_tail == "before\nafter\n"
    again = it.site.assign(it.site.program("print('again')"), attempt=2)
    it.stream.send(assign=again)
    assert (await it.exited(again)).log_tail == "again\n"
    assert it.log().endswith("again\n")
    await it.unharmed()


async def test_a_hundred_thousand_small_files(attacked: Any) -> None:
    it = await attacked("""
        folder = os.path.join(me.checkpoint_dir, "1")
        os.mkdir(folder)
        for n in range(100_000):
            os.close(os.open(f"{folder}/{n}", os.O_CREAT | os.O_WRONLY))
        request = runtime_pb2.ReportRequest(lease_id=lease, sequence=1, step=1, checkpoint_dir=folder)
        try:
            stub.Report(request, timeout=60)
        except grpc.RpcError as error:
            print(error.code().name, error.details())
    """)
    await it.unharmed()
    exited = await it.exited(it.attack)
    assert "INVALID_ARGUMENT" in exited.log_tail
    assert "more than 10000 files" in exited.log_tail
    await until(lambda: not list((it.site.root / "home/scratch").iterdir()), "its files are gone", 30.0)


async def test_a_trial_that_ignores_every_signal(attacked: Any) -> None:
    it = await attacked(
        """
        for number in range(1, signal.NSIG):
            try:
                signal.signal(number, signal.SIG_IGN)
            except (OSError, ValueError):
                pass
        mark("deaf")
        while True:
            time.sleep(1)
        """,
        grace_s=0.5,
    )
    await until((it.site.marks / "deaf").exists, "it ignores signals")
    it.stream.send(cancel=worker_pb2.Cancel(lease=it.attack.lease, reason="a user stopped it"))
    exited = await it.exited(it.attack)
    assert (exited.outcome, exited.exit_code) == (RELEASED, -signal.SIGKILL)
    await it.unharmed()
    await it.slot_is_free_again()


async def test_a_trial_that_kills_its_own_group(attacked: Any) -> None:
    it = await attacked("os.killpg(0, signal.SIGKILL)")
    exited = await it.exited(it.attack)
    assert (exited.outcome, exited.error) == (LOST, "killed by SIGKILL")
    await it.unharmed()
    await it.slot_is_free_again()


async def test_reports_that_nobody_takes_are_bounded(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The scheduler acknowledges nothing: a trial that reports endlessly waits, the other one continues."""
    monkeypatch.setattr(reports, "MAX_KEPT", 100)
    scheduler.acks = False
    site.start()
    stream = await scheduler.stream()
    attack = site.assign(
        site.program("""
        for n in range(1, 10**6):
            report(1)
            mark("reported", n)
        """),
        milestone=10**9,
    )
    stream.send(assign=attack)
    reported = site.marks / "reported"
    await until(lambda: reported.exists() and int(reported.read_text()) >= 100, "the outbox is full")
    program = site.program("[report(n) for n in range(1, 11)]; mark('done')")
    honest = site.assign(program, slots=(1,), number=1, milestone=99)
    stream.send(assign=honest)
    await until((site.marks / "done").exists, "the other trial is done")
    assert int(reported.read_text()) == 100
    theirs = [r.sequence for r in stream.all("report") if r.lease == attack.lease]
    stream.send(ack=worker_pb2.Ack(sequences=theirs[:50]))
    await until(lambda: int(reported.read_text()) == 150, "what is acknowledged makes room")


@pytest.fixture
def small_disk(site: Site) -> Iterator[Path]:
    """The worker's home on a disk of 24 MiB."""
    home = site.root / "home"
    home.mkdir(exist_ok=True)
    if os.geteuid() or os.system(f"mount -t tmpfs -o size=24m tmpfs {home}"):
        pytest.skip("a file system can be mounted by root alone")
    yield home
    os.system(f"umount -l {home}")


@pytest.mark.usefixtures("small_disk")
async def test_a_disk_that_its_trial_fills_up(attacked: Any) -> None:
    """The others wait, the worker says whose files they are, and the files are deleted when the trial ends."""
    it = await attacked("""
        with open(os.path.join(me.checkpoint_dir, "hog"), "wb", buffering=0) as hog:
            try:
                while True:
                    hog.write(bytes(1 << 20))
            except OSError:
                pass
            try:
                while True:
                    hog.write(b"x")
            except OSError:
                pass
        os.symlink("x", Path(os.environ["MARKS"], "full"))  # takes no room
        while not Path(os.environ["MARKS"], "go").exists():
            time.sleep(0.01)
    """)
    await until((it.site.marks / "full").is_symlink, "the disk is full")

    def named() -> bool:
        beats = it.stream.all("heartbeat")
        return any(it.attack.lease.trial in b.trouble and "MiB" in b.trouble for b in beats)

    await until(named, "the heartbeat names the trial that fills the disk")
    (it.site.marks / "go").touch()
    assert (await it.exited(it.attack)).outcome == FINISHED
    exited = await it.exited(it.honest)
    assert exited.outcome == FINISHED
    reports = [r for r in it.stream.all("report") if r.lease == it.honest.lease]
    assert [r.step for r in reports] == list(range(1, STEPS + 1))
    await it.slot_is_free_again()
