"""The home folders of another user's trials: no project loads what a trial of another project has left there."""

import json
import os
import time
from pathlib import Path
from typing import Any

import pytest
from other_user_site import as_root, daemon_of_root, interpreter, of_a_container
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import PRELUDE, Site

from headrace.v1 import event_pb2, spec_pb2, worker_pb2
from headrace_worker import own_folders
from headrace_worker.launch import Launch, launch_of
from headrace_worker.quarters import UNUSED_S, Estate
from headrace_worker.run_as import OtherUser

LEAVES = """
import tempfile
def tries(act):
    try:
        return act()
    except OSError as error:
        return type(error).__name__
left = {
    "config": Path.home() / ".config/matplotlib/matplotlibrc",
    "start": Path.home() / ".pythonrc",
    "temporary": Path(tempfile.gettempdir()) / "left",
}
seen = {name: path.exists() for name, path in left.items()}
others = Path(os.environ["MARKS"], "left-by-the-first")
seen["others"] = [tries(lambda: Path(one).read_text()) for one in json.loads(others.read_text())] \\
    if others.exists() else []
for path in left.values():
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("evil")
mark(os.environ["HR_MARK"] + "-left", json.dumps([str(path) for path in left.values()]))
mark(os.environ["HR_MARK"], json.dumps(seen))
if os.environ["HR_MARK"] == "stays":
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    time.sleep(600)
"""


@pytest.fixture(scope="module", autouse=True)
def python() -> str:
    """Found before gRPC has threads in this process."""
    return interpreter()


@pytest.fixture
async def site(open_folder: Path, scheduler: ScriptedScheduler) -> Site:
    place = Site(open_folder, scheduler)
    place.marks.chmod(0o777)
    program = place.root / "leaves.py"
    program.write_text(PRELUDE + LEAVES)
    program.chmod(0o644)
    return place


def assigned(site: Site, project: str, mark: str) -> worker_pb2.Assign:
    assign = site.assign([interpreter(), str(site.root / "leaves.py")], project=project)
    assign.template.env["HR_MARK"] = mark
    return assign


async def ran(site: Site, stream: Stream, project: str, mark: str) -> dict[str, Any]:
    assign = assigned(site, project, mark)
    stream.send(assign=assign)
    await until(lambda: [one for one in stream.all("exited") if one.lease == assign.lease], "its end", 40)
    found: dict[str, Any] = json.loads((site.marks / mark).read_text())
    return found


def temporary(site: Site) -> list[str]:
    folder = site.settings.tmp_dir
    return [one.name for one in folder.iterdir()] if folder.exists() else []


@as_root
async def test_no_project_sees_what_a_trial_of_another_one_has_left(site: Site) -> None:
    nothing = {"config": False, "start": False, "temporary": False}
    async with daemon_of_root(site, 1, of_a_container()):
        stream = await site.scheduler.stream()
        assert await ran(site, stream, "one", "first") == {**nothing, "others": []}
        (site.marks / "first-left").rename(site.marks / "left-by-the-first")
        # Nor by its path, if a project's gate lets nobody else pass. The temporary folder is gone.
        closed = {**nothing, "others": ["PermissionError", "PermissionError", "FileNotFoundError"]}
        assert await ran(site, stream, "two", "second") == closed
        again = await ran(site, stream, "one", "third")
        assert again == {"config": True, "start": True, "temporary": False,
                         "others": ["evil", "evil", "FileNotFoundError"]}  # fmt: skip
        await until(lambda: not temporary(site), "the end of the temporary folders")


@as_root
async def test_the_next_worker_clears_the_temporary_folders_of_one_that_was_killed(site: Site) -> None:
    async with daemon_of_root(site, 1) as daemon:
        stream = await site.scheduler.stream()
        stream.send(assign=assigned(site, "one", "stays"))
        await until(lambda: (site.marks / "stays").exists(), "the trial", 40)
        daemon.kill()
        await daemon.wait()
    (left,) = temporary(site)
    assert (site.settings.tmp_dir / left / "t" / "left").read_text() == "evil"
    async with daemon_of_root(site, 1):
        await site.scheduler.stream(2)
        await until(lambda: left not in temporary(site), "the end of the temporary folder", 40)


def user() -> OtherUser:
    return OtherUser(name="trials", uid=71, gid=72, groups=(72,), home="/trials")


def estate(folder: Path) -> Estate:
    return Estate(homes=folder / "homes", tmp=folder / "tmp", family="standby-1-2-x-")


def launched(folder: Path, *pass_env: str, **env: str) -> Launch:
    assign = worker_pb2.Assign(
        lease=event_pb2.LeaseRef(lease_id="l", trial="studies/s/trials/0"),
        template=spec_pb2.TrialTemplate(callable="m:f", env=env),
    )
    worker = {"HOME": "/worker", "TMPDIR": "/fast", "TMP": "/fast", "XDG_CACHE_HOME": "/worker/cache"}
    return launch_of(
        assign, devices=(), runtime="", log_dir=folder, environ=worker, pass_env=pass_env, user=user(),
        quarters=estate(folder).quarters("project one", 7),
    )  # fmt: skip


def test_what_a_trial_is_told_of_its_places(tmp_path: Path) -> None:
    env = launched(tmp_path).env
    assert Path(env["HOME"]).is_relative_to(tmp_path / "homes")
    assert Path(env["TMPDIR"]).is_relative_to(tmp_path / "tmp")
    assert not {"TMP", "XDG_CACHE_HOME"} & env.keys()
    assert Path(env["TORCHINDUCTOR_CACHE_DIR"]).is_relative_to(env["HOME"])


def test_the_study_and_the_operator_may_say_otherwise(tmp_path: Path) -> None:
    of_study = launched(tmp_path, HOME="/data", TMPDIR="/scratch", XDG_CACHE_HOME="/data/cache").env
    assert (of_study["HOME"], of_study["TMPDIR"], of_study["XDG_CACHE_HOME"]) == (
        *("/data", "/scratch", "/data/cache"),
    )
    assert launched(tmp_path, TORCHINDUCTOR_CACHE_DIR="/data").env["TORCHINDUCTOR_CACHE_DIR"] == "/data"
    of_operator = launched(tmp_path, "TMPDIR", "XDG_*").env
    assert (of_operator["TMPDIR"], of_operator["XDG_CACHE_HOME"]) == ("/fast", "/worker/cache")
    assert Path(of_operator["HOME"]).is_relative_to(tmp_path / "homes")


def test_a_standby_process_has_a_temporary_folder_of_its_own_and_is_still_fit(
    tmp_path: Path,
) -> None:
    launch = launched(tmp_path)
    other = own_folders.of_another_process(launch)
    assert other.env["TMPDIR"] != launch.env["TMPDIR"]
    assert other.env["HOME"] == launch.env["HOME"]
    assert other.quarters is not None
    assert other.env["TMPDIR"] == str(other.quarters.tmp)
    assert own_folders.without(other) == own_folders.without(launch)
    # Not if it belongs to another project.
    assert launch.quarters is not None
    theirs = own_folders.without(launched(tmp_path)).quarters
    assert theirs == own_folders.without(launch).quarters != estate(tmp_path).quarters("project two", 7)


def test_projects_have_homes_and_groups_of_their_own(tmp_path: Path) -> None:
    one, again, two = (estate(tmp_path).quarters(f"project {name}", 7) for name in ("one", "one", "two"))
    assert (one.home, one.group) == (again.home, again.group)
    assert one.tmp != again.tmp
    assert one.home != two.home
    assert one.group is None or one.group != two.group


@as_root
def test_a_home_that_was_not_used_for_long_is_deleted(tmp_path: Path) -> None:
    used, unused = (estate(tmp_path).quarters(name, 7) for name in ("used", "unused"))
    for one in (used, unused):
        one.make(user().spelled)
        assert (one.home.stat().st_uid, one.tmp.stat().st_uid, one.home.parent.stat().st_uid) == (71, 71, 0)
    long_ago = time.time() - UNUSED_S - 10
    os.utime(unused.home.parent, (long_ago, long_ago))
    estate(tmp_path).clear_unused()
    assert used.home.exists()
    assert not unused.home.parent.exists()


def test_a_home_whose_temporary_folders_have_no_room_for_sockets(tmp_path: Path) -> None:
    deep = Path("/" + "d" * 80)
    said = Estate(homes=deep / "homes", tmp=deep / "tmp", family="f").too_long()
    assert f"--home {deep} is so long" in said
    shorter = Path("/" + "d" * (80 - int(said.split("give one that is ")[1].split()[0])))
    assert not Estate(homes=shorter / "homes", tmp=shorter / "tmp", family="f").too_long()
