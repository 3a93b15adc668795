"""Environments under `--run-as`: nothing that is installed has the worker's rights, and no other trial changes it."""

import asyncio
import json
import os
import pwd
import stat
import subprocess
from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from environment_site import WHEEL, Worker, project_folder, wheel, wheel_bytes
from other_user_site import NUMBER, USER, as_root, daemon_of_root, interpreter
from scripted_scheduler import ScriptedScheduler, until
from shipped_site import packed, served_beside
from worker_site import PRELUDE, Site

from headrace.v1 import spec_pb2, worker_pb2
from headrace_worker import own_groups
from headrace_worker.build_folder import BuildFolder
from headrace_worker.code_cache import UnpreparedError
from headrace_worker.run_as import OtherUser, other_user

pytestmark = [pytest.mark.full, as_root]

# The build of a package for the environment records its user, and waits for the trial of another project.
BUILDS = """
    import json, os, sys, time
    from pathlib import Path
    def reads(path):
        try:
            return bool(os.listdir(path) if os.path.isdir(path) else open(path, "rb").read(1))
        except OSError as error:
            return type(error).__name__
    said = Path({marks!r}, "said")
    said.with_suffix(".new").write_text(json.dumps({{
        "pid": os.getpid(), "uids": os.getresuid(), "gids": os.getresgid(), "groups": os.getgroups(),
        "environ": dict(os.environ), "reads": {{path: reads(path) for path in {tries!r}}},
    }}))
    if sys.prefix.endswith("/venv"):
        said.with_suffix(".new").rename(said)
        while not Path({marks!r}, "tried").exists():
            time.sleep(0.01)
"""
# A trial of the same user.
INTRUDES = """
import ctypes, json, os, sys
from pathlib import Path
pid, *places = sys.argv[1:]
libc = ctypes.CDLL(None, use_errno=True)
def outcome(act):
    try:
        act()
        return "OK"
    except OSError as error:
        return type(error).__name__
def attach():
    if libc.ptrace(16, int(pid), 0, 0):
        raise OSError(ctypes.get_errno(), "ptrace")
said = {}
for place in places:
    said["lists " + place] = outcome(lambda: os.listdir(place))
    said["writes " + place] = outcome(lambda: Path(place, "tinylib.py").write_text("WORD = 'evil'"))
    said["enters " + place] = outcome(lambda: os.chdir(place))
for name in ("cwd", "root"):
    said[name] = outcome(lambda: os.listdir(f"/proc/{pid}/{name}"))
for name in ("environ", "mem", "fd/0", "fd/1"):
    said[name] = outcome(lambda: open(f"/proc/{pid}/{name}", "rb").read(1))
said["traces"] = outcome(attach)
print(json.dumps(said))
"""


@pytest.fixture(scope="module", autouse=True)
def python() -> str:
    return interpreter()


@pytest.fixture
def user() -> OtherUser:
    """The user as the daemon has it: with the group of its home."""
    found = other_user(USER)
    return replace(found, groups=(*found.groups, own_groups.of_family("of-these-tests")))


@pytest.fixture
async def worker(open_folder: Path, user: OtherUser) -> AsyncIterator[Worker]:
    environ = {"PIP_CACHE_DIR": str(open_folder / "cache"), "XDG_CACHE_HOME": "/cache", "SECRET_TOKEN": "x"}
    async with asyncio.TaskGroup() as tasks:
        yield Worker(open_folder, tasks, environ, user=user)


def as_user(*args: str, groups: tuple[int, ...] = ()) -> subprocess.CompletedProcess[str]:
    """Runs a program as a trial runs."""
    found = pwd.getpwnam(USER)
    return subprocess.run(
        args,
        user=found.pw_uid,
        group=found.pw_gid,
        extra_groups=groups,
        cwd="/",
        capture_output=True,
        text=True,
        check=False,
    )


def requires(files: dict[str, str | bytes]) -> dict[str, str | bytes]:
    return {"requirements.txt": "./mine\n", **files}


async def test_what_is_being_installed_has_no_more_rights_than_a_trial_and_is_closed_to_others(
    worker: Worker, open_folder: Path, user: OtherUser, python: str
) -> None:
    marks, secret = open_folder / "marks", open_folder / "secret"
    marks.mkdir()
    marks.chmod(0o777)
    secret.write_text("the worker's")
    secret.chmod(0o600)
    tries = [str(secret), "/etc/shadow", f"/proc/{os.getpid()}/environ", str(worker.folder)]
    builds = project_folder("mine", before=BUILDS.format(marks=str(marks), tries=tries))
    making = asyncio.create_task(worker.python("alice", requires(dict(builds)), python=python))
    try:
        while not (marks / "said").exists() and not making.done():
            await asyncio.sleep(0.05)
        said = json.loads((marks / "said").read_text())
        build = Path(said["environ"]["HOME"]).parent
        (place,) = (path / "venv" for path in worker.folder.iterdir() if (path / "venv").exists())
        places = [
            str(path) for path in (worker.folder, build, build / "tmp", build / "source" / "mine", place)
        ]
        intruder = as_user(python, "-I", "-c", INTRUDES, str(said["pid"]), *places, groups=user.groups)
    finally:
        (marks / "tried").touch()
        made = await making
    assert made == place / "bin" / "python"
    (gid, *others) = set(said["gids"])
    assert (said["uids"], others) == ([user.uid] * 3, [])
    assert gid >> 27 == 0x78000000 >> 27
    assert {user.gid, *user.groups} <= set(said["groups"])
    assert said["reads"] == dict.fromkeys(tries, "PermissionError")
    assert (build.parent, said["environ"]["TMPDIR"]) == (worker.folder, str(build / "tmp"))
    assert {"PIP_CACHE_DIR", "XDG_CACHE_HOME", "SECRET_TOKEN"}.isdisjoint(said["environ"])
    outcomes = json.loads(intruder.stdout)
    assert outcomes.pop(f"enters {worker.folder}") == "OK", "so that trials reach their environments"
    assert {name: found for name, found in outcomes.items() if found != "PermissionError"} == {}


async def test_what_was_installed_can_be_used_and_not_changed(
    worker: Worker, user: OtherUser, python: str
) -> None:
    files: dict[str, str | bytes] = {"requirements.txt": f"{WHEEL}\n", WHEEL: wheel_bytes(word="good")}
    made = await worker.python("alice", files, python=python)
    asked = as_user(
        str(made), "-c", "import tinylib, os; print(tinylib.WORD, os.getuid())", groups=user.groups
    )
    assert asked.stdout == f"good {user.uid}\n", asked.stderr
    environment = made.parents[2]
    found = [environment, *environment.rglob("*")]
    assert {path.lstat().st_uid for path in found} == {0}
    assert {path.lstat().st_gid for path in found} == {0}
    assert [path for path in found if not path.is_symlink() and path.stat().st_mode & 0o6022] == []
    for tries in (
        ["touch", str(environment / "x")],
        ["ls", str(worker.folder)],
        ["ls", str(worker.folder / "locks")],
    ):
        assert "Permission denied" in as_user(*tries, groups=user.groups).stderr
    assert [path.name for path in worker.folder.iterdir() if path.name.startswith("build-")] == []
    # Already compiled: a trial could not store what it compiles.
    assert list(environment.rglob(f"tinylib.cpython-{NUMBER.replace('.', '')}.pyc"))


async def test_a_python_of_the_study_has_no_hand_in_what_is_roots(
    worker: Worker, open_folder: Path, python: str
) -> None:
    """It makes an environment with a link to a file of root's, and says what root would write there."""
    target = open_folder / "of-root"
    target.write_text("as it was")
    hostile = open_folder / "python"
    hostile.write_text(
        f'#!/bin/sh\ncase "$*" in *getsitepackages*) echo \'["1", "/", "{hostile}", ["evil"]]\'; exit;; esac\n'
        f'for place; do :; done\ncase "$*" in *"-m venv"*)\n'
        f'made="$place/lib/python3/site-packages"\nmkdir -p "$place/bin" "$made"\n'
        f'ln -s {target} "$made/headrace_base.pth"\nln -s {python} "$place/bin/python"\nesac\n'
    )
    hostile.chmod(0o755)
    with pytest.raises(UnpreparedError, match="Permission denied"):
        await worker.python("mallory", {"requirements.txt": "x\n"}, python=str(hostile))
    assert (target.read_text(), target.stat().st_uid) == ("as it was", 0)
    hostile.write_text(f"#!/bin/sh\n{python} -c \"print('[' * 100000)\"\n")
    with pytest.raises(UnpreparedError, match="cannot be started"):
        await worker.python("mallory", {"requirements.txt": "y\n"}, python=str(hostile))


async def test_requirements_that_are_a_link_to_a_file_of_roots_are_not_read(
    worker: Worker, open_folder: Path, user: OtherUser
) -> None:
    secret = open_folder / "secret"
    secret.write_text("hr-s3cr3t\n")
    secret.chmod(0o600)
    (open_folder / "requirements.txt").symlink_to(secret)
    template = spec_pb2.TrialTemplate(working_dir=str(open_folder), requirements="requirements.txt")
    worker.programs._may_read = user.may_read
    with pytest.raises(UnpreparedError) as refused:
        await worker.programs.prepare(worker_pb2.Assign(template=template), print, worker.printed.append)
    assert "hr-s3cr3t" not in f"{refused.value} {worker.printed}"
    assert "closed to its trials" in str(refused.value)


def test_sealing_takes_what_is_its_own_and_refuses_all_else(open_folder: Path, user: OtherUser) -> None:
    def folder(name: str, **make: Any) -> Path:
        place = open_folder / name
        (place / "lib").mkdir(parents=True)
        (place / "lib" / "program").write_text("x")
        (place / "lib" / "program").chmod(0o4777)
        (place / "link").symlink_to("/etc/shadow")
        for path, act in make.items():
            act(place / path)
        user.give(place)
        for path in (*place.rglob("*"),):
            os.chown(path, user.uid, user.gid, follow_symlinks=False)
        (place / "lib" / "program").chmod(0o4777)
        return place

    plain = folder("plain")
    user.seal(plain)
    assert {path.lstat().st_uid for path in (plain, *plain.rglob("*"))} == {0}
    assert stat.S_IMODE((plain / "lib" / "program").stat().st_mode) == 0o755
    assert Path("/etc/shadow").stat().st_mode & 0o077 <= 0o040
    outside = open_folder / "outside"
    outside.write_text("x")
    for name, act in (("pipe", os.mkfifo), ("hard", lambda path: path.hardlink_to(outside))):
        with pytest.raises(OSError, match=name):
            user.seal(folder(f"with-{name}", **{name: act}))
    foreign = folder("foreign")
    os.chown(foreign / "lib" / "program", 0, 0)
    with pytest.raises(OSError, match="program"):
        user.seal(foreign)


async def test_ssh_asks_no_settings_of_the_user(open_folder: Path, user: OtherUser) -> None:
    (open_folder / "bin").mkdir()
    ssh = open_folder / "bin" / "ssh"
    ssh.write_text('#!/bin/sh\necho "$@"\n')
    ssh.chmod(0o755)
    build = BuildFolder(open_folder / "build", {"PATH": f"{ssh.parent}:/usr/bin:/bin"}, user)
    build.make(b"")
    assert (
        await build.output_of("ssh", "host")
        == b"-F none -o UserKnownHostsFile=/dev/null -o BatchMode=yes host\n"
    )


TRIAL = """
import os, tinylib
here = Path(tinylib.__file__)
def tries(act):
    try:
        act()
        return "OK"
    except OSError as error:
        return type(error).__name__
changes, adds = tries(lambda: here.write_text("WORD = 'evil'")), tries(lambda: here.with_name("new.pth").touch())
mark(os.environ["PROJECT"], " ".join([tinylib.WORD, str(os.getuid()), changes, adds]))
report(1)
"""


async def test_trials_of_two_projects_have_what_their_own_one_requires(
    open_folder: Path, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch, user: OtherUser
) -> None:
    codes = await served_beside(scheduler, monkeypatch)
    site = Site(open_folder, scheduler)
    site.marks.chmod(0o777)
    site.settings.home.mkdir(mode=0o700)
    async with daemon_of_root(site, 2, PIP_NO_INDEX="1"):
        stream = await scheduler.stream()
        for number, (project, word) in enumerate((("mallory", "evil"), ("alice", "good"))):
            wheel(open_folder / project, word=word)
            files = {"requirements.txt": f"{WHEEL}\n", "run.py": PRELUDE + TRIAL}
            digest, codes.kept[digest] = packed(open_folder / project, files)
            assign = site.assign([interpreter(), "run.py"], slots=(number,), number=number, milestone=1)
            assign.template.command.args[0] = "python"
            assign.template.code.CopyFrom(spec_pb2.Code(ship=True, digest=digest))
            assign.template.requirements = "requirements.txt"
            assign.template.env["PROJECT"] = project
            assign.project = project
            stream.send(assign=assign)
        for project, word in (("mallory", "evil"), ("alice", "good")):
            await until((site.marks / project).exists, f"the mark of {project}", 200)
            assert (site.marks / project).read_text() == f"{word} {user.uid} PermissionError PermissionError"
