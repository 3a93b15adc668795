"""What a trial under `--run-as` can access of its worker and of other trials, by its program and by a library."""

import asyncio
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import psutil
import pytest
from other_user_site import (
    LEAVES,
    USER,
    as_root,
    daemon_of_root,
    interpreter,
    library_that_says,
    of_a_container,
)
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import PRELUDE, Site

from headrace.v1 import worker_pb2
from headrace_worker.run_as import other_user

pytestmark = [pytest.mark.full, as_root]
SECRET = "hr-s3cr3t"
OPENED = """
import os
opened = {number: os.readlink(f"/proc/self/fd/{number}") for number in range(100)
          if os.path.exists(f"/proc/self/fd/{number}")}
"""
STAYS = """
Path(me.checkpoint_dir, "weights").write_text("theirs")
mark("stays", json.dumps([lease, me.checkpoint_dir, os.getpid()]))
signal.signal(signal.SIGTERM, signal.SIG_DFL)
time.sleep(600)
"""
TRIES = """
import ctypes, socket
libc = ctypes.CDLL(None, use_errno=True)
worker, runtime = os.getppid(), Path(os.environ["HEADRACE_RUNTIME"].removeprefix("unix:")).parent
home = Path(me.checkpoint_dir).parents[2]
theirs = json.loads(Path(os.environ["MARKS"], "stays").read_text())
def outcome(act):
    try:
        return act() and "OK"
    except OSError as error:
        return type(error).__name__
    except grpc.RpcError as error:
        return error.code().name
def checked(returned):
    if returned < 0:
        raise OSError(ctypes.get_errno(), "refused")
    return True
def connected(path):
    with socket.socket(socket.AF_UNIX) as line:
        line.connect(str(path))
    return True
report = runtime_pb2.ReportRequest(lease_id=theirs[0], sequence=1, step=1, metrics={"loss": 0.0})
said = {
    "uids": [*os.getresuid(), os.stat("/proc/self").st_uid],
    "gids": [*os.getresgid()],
    "groups": sorted(set(os.getgroups())),
    "capabilities": sorted({line.split()[1] for line in Path("/proc/self/status").read_text().splitlines()
                            if line.startswith(("CapInh", "CapPrm", "CapEff", "CapAmb"))}),
    "opened": opened,
    "secrets": sorted(name for name, value in os.environ.items() if "hr-" + "s3cr3t" in value),
    "worker": worker,
    "becomes root": outcome(lambda: os.setuid(0)),
    "leaves its groups": outcome(lambda: os.setgroups([])),
    "signals the worker": outcome(lambda: os.kill(worker, 0)),
    "traces the worker": outcome(lambda: checked(libc.ptrace(16, worker, 0, 0))),
    "limits the worker": outcome(lambda: __import__("resource").prlimit(worker, 7)),
    "lists the worker's files": outcome(lambda: os.listdir(f"/proc/{worker}/fd")),
    "writes to the home": outcome(lambda: (home / "x").write_text("x")),
    "writes to the scratch folder": outcome(lambda: (home / "scratch" / "x").write_text("x")),
    "writes beside its own folders": outcome(lambda: Path(me.checkpoint_dir).parent.joinpath("x").write_text("x")),
    "replaces the socket": outcome(lambda: (runtime / "rt").unlink() or True),
    "calls past the socket": outcome(lambda: connected(runtime / "in")),
    "reports for another trial": outcome(lambda: stub.Report(report, timeout=60)),
    "attaches as another trial": outcome(
        lambda: stub.Attach(runtime_pb2.AttachRequest(lease_id=theirs[0]), timeout=60)),
    "other trial's checkpoint, same user": outcome(lambda: Path(theirs[1], "weights").read_text()),
}
mark("said", json.dumps(said))
time.sleep(600)
"""
DENIED = "PermissionError"
REFUSED = {
    "becomes root": DENIED,
    "leaves its groups": DENIED,
    "signals the worker": DENIED,
    "traces the worker": DENIED,
    "limits the worker": DENIED,
    "lists the worker's files": DENIED,
    "writes to the home": DENIED,
    "writes to the scratch folder": DENIED,
    "writes beside its own folders": DENIED,
    "replaces the socket": DENIED,
    "calls past the socket": DENIED,
    "reports for another trial": "PERMISSION_DENIED",
    "attaches as another trial": "PERMISSION_DENIED",
}
# In the worker's home.
FOLDERS = ("", "logs", "taken", "scratch", "code", "code/sha256", "rejected", "environments")
FILES = ("outbox.sqlite", "lock", "id", "runtime", "credential.json", "joining.key", "token")
# Of the worker's process.
OF_PROCESS = ("environ", "mem", "maps", "fd", "root", "cwd", "stack", "io")


@pytest.fixture
async def site(open_folder: Path, scheduler: ScriptedScheduler) -> Site:
    interpreter()  # before gRPC has more threads
    place = Site(open_folder, scheduler)
    place.marks.chmod(0o777)
    home = place.settings.home
    home.mkdir(mode=0o700)
    for name in FOLDERS:
        (home / name).mkdir(mode=0o700, exist_ok=True, parents=True)
    for name in ("credential.json", "joining.key", "token"):
        (home / name).write_text(SECRET)
        (home / name).chmod(0o600)
    return place


def closed(site: Site, daemon: asyncio.subprocess.Process) -> list[str]:
    """What only the worker should be able to read while trial 1 runs. All of it exists."""
    home, store = site.settings.home, Path(site.settings.store_url.removeprefix("file://"))
    store.mkdir(mode=0o700, exist_ok=True)
    (log,) = (home / "logs").rglob("1.log")
    found = [
        *(home / name for name in (*FOLDERS, *FILES)),
        *(Path("/proc", str(daemon.pid), name) for name in OF_PROCESS),
        *(store, log, log.parent, Path("/etc/shadow"), Path("/proc/1/environ")),
    ]
    assert [path for path in found if not os.path.lexists(path)] == []
    return [str(path) for path in found]


def assigned(site: Site, body: str, slot: int, **env: str) -> worker_pb2.Assign:
    """A trial on a slot, which runs as another user."""
    path = site.root / f"program{slot}.py"
    path.write_text(body)
    path.chmod(0o644)
    assign = site.assign([interpreter(), str(path)], slots=(slot,), number=slot, milestone=1, grace_s=0.5)
    for name, value in env.items():
        assign.template.env[name] = value
    return assign


async def said_of(path: Path) -> Any:
    """What a program recorded."""
    await until(path.exists, f"{path.name}", 60)
    return json.loads(await asyncio.to_thread(path.read_text))


def lines(path: Path) -> Mapping[bool, list[str]]:
    """What the library recorded: which files it could read, and as which user it was loaded."""
    found = path.read_text().splitlines()
    return {which: [line for line in found if line.startswith("reads ") is which] for which in (True, False)}


@pytest.mark.parametrize("rights", [tuple, of_a_container])
async def test_what_a_trial_of_another_user_reaches(
    site: Site, scheduler: ScriptedScheduler, rights: Callable[[], tuple[str, ...]]
) -> None:
    user, seen = other_user(USER), site.root / "seen"
    library = library_that_says(site.root, seen)
    secrets = {"AWS_SECRET_ACCESS_KEY": SECRET, "HEADRACE_DATABASE_URL": SECRET}
    async with daemon_of_root(site, 2, rights(), **secrets) as daemon:
        stream = await scheduler.stream()
        stays = assigned(site, PRELUDE + STAYS, 1)
        stream.send(assign=stays)
        _, _, other_pid = await said_of(site.marks / "stays")
        tries = await asyncio.to_thread(closed, site, daemon)
        readable = str(site.root / "program1.py")
        preloads = {"LD_PRELOAD": library, "HR_TRIES": ":".join([*tries, readable])}
        curious = assigned(site, OPENED + PRELUDE + TRIES, 0, **preloads)
        stream.send(assign=curious)
        said = await said_of(site.marks / "said")
        found = lines(seen)
        assert set(found[True]) == {f"reads {readable}"}, "of all that it tried"
        assert {line.rpartition(" ")[0] for line in found[False]} == {f"{user.uid} {user.uid} {user.gid}"}
        assert said.pop("uids") == [user.uid] * 4
        assert said.pop("gids") == [user.gid] * 3
        groups = set(said.pop("groups")) - set(user.groups)
        homes, trials = 0x70000000 >> 27, 0x78000000 >> 27
        assert sorted(group >> 27 for group in groups) == [homes, homes, trials], (
            "its worker's, project's, own"
        )
        assert said.pop("capabilities") == ["0" * 16]
        opened = said.pop("opened")
        assert (sorted(opened), opened["0"]) == (["0", "1", "2"], "/dev/null")
        assert opened["1"] == opened["2"]
        assert Path(opened["1"]).name == "0.log"
        assert said.pop("secrets") == []
        assert said.pop("worker") == daemon.pid
        # Trials share a user: only another --run-as on another worker separates them.
        assert said.pop("other trial's checkpoint, same user") == "OK"
        assert said == REFUSED
        assert psutil.pid_exists(other_pid)
        assert not stream.all("exited")


async def left_by(stream: Stream, site: Site, slot: int) -> tuple[worker_pb2.Assign, psutil.Process]:
    """A trial that stays, and the child that it left running."""
    left = site.marks / f"left-{slot}"
    assign = assigned(site, f"import sys\nsys.argv = ['', {str(left)!r}, 'stays']\n{LEAVES}", slot)
    stream.send(assign=assign)
    return assign, psutil.Process(await said_of(left))


@pytest.mark.parametrize("rights", [tuple, of_a_container])
async def test_a_child_that_left_everything_ends_with_its_trial_and_with_a_daemon_that_was_killed(
    site: Site, scheduler: ScriptedScheduler, rights: Callable[[], tuple[str, ...]]
) -> None:
    async with daemon_of_root(site, 2, rights()) as daemon:
        stream = await scheduler.stream()
        first, of_first = await left_by(stream, site, 0)
        _, of_second = await left_by(stream, site, 1)
        assert {of_first.ppid(), of_second.ppid()}.isdisjoint({daemon.pid, *_children(daemon.pid)})
        stream.send(cancel=worker_pb2.Cancel(lease=first.lease, reason="enough"))
        exited = await stream.get("exited")
        assert exited.lease == first.lease
        assert _over(of_first)
        assert of_second.is_running()
    assert of_second.is_running(), "the daemon was killed: nobody ended it"
    async with daemon_of_root(site, 2, rights()):
        await scheduler.stream(2)
        await until(lambda: _over(of_second), "the end of what the daemon before had left", 60)


def _over(process: psutil.Process) -> bool:
    try:
        return process.status() == psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return True


def _children(pid: int) -> list[int]:
    return [child.pid for child in psutil.Process(pid).children(recursive=True)]
