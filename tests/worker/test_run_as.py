"""Trials as another OS user: what they may access, what the daemon accepts from them, and when it is refused."""

import asyncio
import json
import os
import pwd
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from other_user_site import IMPORTS, USER, as_root, daemon_of_root, interpreter, of_a_container
from scripted_scheduler import ScriptedScheduler, until
from worker_site import PRELUDE, Site

from headrace.checkpoints import CheckpointInvalidError
from headrace.errors import InvalidFieldError
from headrace.v1 import trial_pb2, worker_pb2
from headrace_worker.daemon import Daemon
from headrace_worker.run_as import OtherUser, other_user, prepare


@pytest.fixture
def user() -> OtherUser:
    return other_user(USER)


SEES = """
def reads(path):
    try:
        with open(path, "rb") as file:
            file.read(1)
        return "reads it"
    except OSError as error:
        return type(error).__name__
home = Path(me.checkpoint_dir).parents[2]
seen = {
    "ids": [*os.getresuid(), *os.getresgid()],
    # But for the user's: the groups of the home and of the trial, by which its processes are known, and its project's.
    "groups": sorted(group >> 27 for group in set(os.getgroups()) - {os.getgid()}),
    "user": [os.environ["USER"], Path.home().is_relative_to(home / "homes")],
    "outbox": reads(home / "outbox.sqlite"),
    "worker's secret": reads(home / "secret"),
    "logs": os.access(home / "logs", os.R_OK | os.X_OK),
    "homes": os.access(home, os.R_OK),
    "daemon": reads(f"/proc/{os.getppid()}/environ"),
    "checkpoints": os.stat(me.checkpoint_dir).st_uid,
    "restored": json.loads(Path(me.restore_dir, "state.json").read_text()) if me.restore_dir else None,
    "stdout": reads("/dev/stdout") if os.access("/dev/stdout", os.W_OK) else "closed",
}
print("seen", flush=True)
with open("/dev/stdout", "a") as again:  # as shell scripts do
    again.write("opened again\\n")
mark(f"seen-{me.assign.resume_step}", json.dumps(seen))
"""
SAVES = (
    SEES
    + """
leave_if_told(report(3, save=True))
"""
)
LINKS = """
def link(where):
    global sequence
    sequence += 1
    folder = Path(me.checkpoint_dir, str(sequence))
    if where == "top":
        folder.symlink_to("/etc")
    else:
        (folder / "deep").mkdir(parents=True)
        (folder / "deep" / "passwords").symlink_to("/etc/shadow")
    request = runtime_pb2.ReportRequest(
        lease_id=lease, sequence=sequence, step=sequence, metrics={"loss": 1.0}, checkpoint_dir=str(folder))
    try:
        stub.Report(request, timeout=60)
    except grpc.RpcError as error:
        return [error.code().name, error.details()]
mark("links", json.dumps([link("top"), link("deep")]))
signal.signal(signal.SIGTERM, signal.SIG_IGN)
time.sleep(600)
"""


@pytest.fixture
async def site(open_folder: Path, scheduler: ScriptedScheduler) -> Site:
    place = Site(open_folder, scheduler)
    place.marks.chmod(0o777)
    return place


def files_below(folder: Path) -> list[Path]:
    """The files in a folder while the daemon may be deleting some."""
    return [Path(above, name) for above, _, names in os.walk(folder) for name in names]


@as_root
@pytest.mark.parametrize("rights", [tuple, of_a_container])
async def test_trials_of_another_user(
    site: Site, scheduler: ScriptedScheduler, user: OtherUser, rights: Callable[[], tuple[str, ...]]
) -> None:
    """One saves, is paused and continues. Another one sets traps and tries not to end."""
    python = interpreter()
    settings = site.settings
    settings.home.mkdir(mode=0o700)
    (settings.home / "secret").write_text("s3cr3t")
    (settings.home / "secret").chmod(0o600)
    async with daemon_of_root(site, 2, rights(), AWS_SECRET_ACCESS_KEY="s3cr3t") as daemon:
        stream = await scheduler.stream()
        said = await asyncio.to_thread((site.root / "daemon.log").read_text)
        assert "serve anyone who can reach them, even trials, as admins" in said

        def program(body: str) -> list[str]:
            path = site.root / f"program{len(list(site.root.glob('program*')))}.py"
            path.write_text(PRELUDE + body)
            path.chmod(0o644)
            return [python, str(path)]

        saves = program(SAVES)
        first = site.assign(saves, milestone=3)
        links = site.assign(program(LINKS), slots=(1,), number=1, grace_s=0.5)
        stream.send(assign=first)
        stream.send(assign=links)
        report = await stream.get("report")
        assert report.checkpoint.uri
        stream.decide(report, 2)
        await until(lambda: [e for e in stream.all("exited") if e.lease == first.lease], "its end", 40)
        again = site.assign(saves, attempt=2, milestone=27, resume_step=3)
        again.checkpoint.CopyFrom(trial_pb2.CheckpointRef.FromString(report.checkpoint.SerializeToString()))
        stream.send(assign=again)
        await until(lambda: (site.marks / "seen-3").exists(), "the second attempt", 40)
        for step, restored in ((0, None), (3, {"step": 3})):
            assert json.loads((site.marks / f"seen-{step}").read_text()) == {
                "ids": [user.uid] * 3 + [user.gid] * 3,
                "groups": [0x70000000 >> 27, 0x70000000 >> 27, 0x78000000 >> 27],
                "user": [USER, True],
                "outbox": "PermissionError",
                "worker's secret": "PermissionError",
                "logs": False,
                "homes": False,
                "daemon": "PermissionError",
                "checkpoints": user.uid,
                "restored": restored,
                "stdout": "reads it",
            }
        (trial_log,) = (settings.home / "logs").rglob("0.log")
        assert trial_log.read_text().count("opened again") == 2
        assert trial_log.stat().st_uid == user.uid
        # The stored checkpoint is root's, in a store that the trial cannot enter.
        stored = files_below(Path(report.checkpoint.uri.removeprefix("file://")))
        assert "state.json" in {path.name for path in stored}
        assert {path.stat().st_uid for path in stored} == {0}
        # The daemon follows no link.
        await until(lambda: (site.marks / "links").exists(), "the traps", 40)
        refused = json.loads((site.marks / "links").read_text())
        assert [code for code, _ in refused] == ["INVALID_ARGUMENT"] * 2, refused
        await until(lambda: not files_below(settings.home / "taken"))
        # SIGTERM is ignored, SIGKILL is not.
        stream.send(cancel=worker_pb2.Cancel(lease=links.lease, reason="enough"))
        await until(lambda: [e for e in stream.all("exited") if e.lease == links.lease], "its end", 40)
        await until(lambda: not (settings.home / "taken" / links.lease.lease_id).exists())
        daemon.terminate()
        assert await asyncio.wait_for(daemon.wait(), 60) == 0


@as_root
@pytest.mark.parametrize("name", ["root", "no-such-user", ""])
def test_users_that_trials_cannot_be(name: str) -> None:
    with pytest.raises(InvalidFieldError, match="--run-as") as refused:
        other_user(name)
    assert refused.value.violations[0].remedy


@as_root
def test_a_daemon_that_is_not_root() -> None:
    program = "from headrace_worker.run_as import other_user; other_user('nobody')"
    done = subprocess.run(
        [interpreter(), "-c", program], user=USER, group=pwd.getpwnam(USER).pw_gid, extra_groups=[], cwd="/",
        env={"PYTHONPATH": IMPORTS}, capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert "--run-as: needs a worker that runs as root" in done.stderr


@as_root
def test_a_home_that_the_user_cannot_reach(
    user: OtherUser, open_folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())
    monkeypatch.setenv("PYTHONPATH", IMPORTS)
    prepare(user, open_folder / "home")
    (open_folder / "closed").mkdir(mode=0o700)
    with pytest.raises(InvalidFieldError, match="cannot reach the worker's home") as refused:
        prepare(user, open_folder / "closed" / "home")
    assert "--home" in refused.value.violations[0].remedy


@as_root
@pytest.mark.parametrize(
    ("modes", "owned", "refused"),
    [
        ({"above": 0o1777, "above/home": 0o755}, "", ""),  # as under /tmp
        ({"above": 0o755, "above/home": 0o755}, "above/home", "above/home"),
        ({"above": 0o755, "above/home": 0o777}, "", "above/home"),
        ({"above": 0o755, "above/home": 0o1777}, "", "above/home"),
        ({"above": 0o777, "above/home": 0o755}, "", "above"),
        ({"above": 0o1777}, "", "above"),  # before the worker has created a store, the user may
        ({"above": 0o755}, "", ""),
        ({"above": 0o1777, "above/real": 0o755, "above/home": None}, "above/home", "above/home"),  # a link
    ],
)
async def test_a_home_and_a_store_that_the_trials_user_may_change(
    user: OtherUser, site: Site, modes: dict[str, int | None], owned: str, refused: str
) -> None:
    """Nothing is read or written there: it may contain links to root's files."""
    for name, mode in modes.items():
        path = site.root / name
        if mode is None:
            path.symlink_to("real")
        else:
            path.mkdir()
            path.chmod(mode)
    if owned:
        os.chown(site.root / owned, user.uid, user.gid, follow_symlinks=False)
    folder = site.root / "above" / "home"
    if not refused:
        user.require_no_hand_in(folder, "--home")
        return
    settings: dict[str, dict[str, Any]] = {"--store": {"store_url": folder.as_uri()}}
    if folder.exists():  # otherwise the worker creates its home first
        settings["--home"] = {"home": folder}
    for option, changed in settings.items():
        with pytest.raises(InvalidFieldError, match=f"may write to {site.root / refused}") as error:
            await Daemon(replace(site.settings, run_as=user, **changed)).run()
        assert f"Give another {option}" in error.value.violations[0].remedy
        assert not folder.exists() or list(folder.iterdir()) == []


@as_root
@pytest.mark.parametrize("trap", ["link", "foreign", "pipe", "deep", "gone", "above", "file", "moved"])
def test_what_the_daemon_does_not_take(user: OtherUser, open_folder: Path, trap: str) -> None:
    root, into = open_folder / "checkpoints", open_folder / "taken"
    folder = root / "1"
    folder.mkdir(parents=True)
    into.mkdir()
    (folder / "state").write_text("x")
    user.give(root)
    outside = open_folder / "outside"
    outside.mkdir()
    (outside / "kept").write_text("root's")
    match trap:
        case "link":
            (folder / "a").symlink_to(outside / "kept")
        case "foreign":  # as a hard link to another user's file does
            os.link(outside / "kept", folder / "a")
        case "pipe":
            os.mkfifo(folder / "a")
        case "deep":
            Path(folder, *["d"] * 60).mkdir(parents=True)
            user.give(folder)
        case "gone":
            folder = root / "2"
        case "above":
            folder = root / ".." / "outside"
        case "file":
            folder = folder / "state"
        case _:
            folder.rename(root / "2")
            folder.symlink_to(outside)
    with pytest.raises(CheckpointInvalidError):
        user.claim(folder, root=root, into=into)
    assert list(into.iterdir()) == []
    assert (outside / "kept").read_text() == "root's"
    assert (outside / "kept").stat().st_uid == 0


@as_root
def test_what_it_takes_is_out_of_the_trials_reach(user: OtherUser, open_folder: Path) -> None:
    root, into = open_folder / "checkpoints", open_folder / "taken"
    (root / "1" / "inner").mkdir(parents=True)
    (root / "1" / "inner" / "state").write_text("x")
    into.mkdir()
    user.give(root)
    taken = user.claim(root / "1", root=root, into=into)
    assert not (root / "1").exists()
    assert {(p.stat().st_uid, p.stat().st_mode & 0o077) for p in (taken, *taken.rglob("*"))} == {(0, 0)}


@as_root
def test_a_file_that_the_trial_has_open_is_not_the_one_that_is_kept(
    user: OtherUser, open_folder: Path
) -> None:
    root, into = open_folder / "checkpoints", open_folder / "taken"
    (root / "1").mkdir(parents=True)
    (root / "1" / "state").write_bytes(b"x" * 100_000)
    (root / "1" / "empty").touch()
    (root / "linked").hardlink_to(root / "1" / "state")
    into.mkdir()
    user.give(root)
    with (root / "1" / "state").open("r+b") as held:
        taken = user.claim(root / "1", root=root, into=into)
        held.write(b"changed")
        held.flush()
    (root / "linked").write_bytes(b"changed too")
    assert (taken / "state").read_bytes() == b"x" * 100_000
    assert sorted(path.name for path in taken.iterdir()) == ["empty", "state"]
