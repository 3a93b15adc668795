"""How a trial of another user is started, and how all of it ends. No code and no variable of the study has the
worker's rights for a moment, and no process of it remains."""

import asyncio
import ctypes
import os
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil
import pytest
from other_user_site import LEAVES, USER, as_root, interpreter, library_that_says

from headrace_worker import own_groups
from headrace_worker.launch import LEASE_VARIABLE, Launch
from headrace_worker.own_groups import Group
from headrace_worker.process import CannotStartError, TrialProcess, end_strays
from headrace_worker.run_as import OtherUser, other_user

# What a loader, a C library, an interpreter or a shell obeys before the program's first line.
OBEYED = (
    *("LD_PRELOAD", "LD_AUDIT", "LD_LIBRARY_PATH", "LD_DEBUG_OUTPUT", "LD_PROFILE", "GCONV_PATH", "LOCPATH"),
    *(
        "NLSPATH",
        "GLIBC_TUNABLES",
        "MALLOC_CHECK_",
        "MALLOC_PERTURB_",
        "MALLOC_TRACE",
        "TZDIR",
        "HOSTALIASES",
    ),
    *("RES_OPTIONS", "TMPDIR", "PYTHONPATH", "PYTHONHOME", "PYTHONSTARTUP", "PYTHONINSPECT", "PYTHONMALLOC"),
    *(
        "PYTHONPLATLIBDIR",
        "PYTHONPYCACHEPREFIX",
        "PYTHONEXECUTABLE",
        "BASH_ENV",
        "ENV",
        "PATH",
        "IFS",
        "HOME",
    ),
    *("LC_ALL", "LANG"),
)
# Of keyctl(2), on x86-64.
_KEYCTL, _READ, _UNLINK, _SESSION_KEYRING = 250, 11, 9, -3
OF_SHELLS = {"PWD", "OLDPWD", "SHLVL", "_"}
pytestmark = as_root


@pytest.fixture
def user(monkeypatch: pytest.MonkeyPatch) -> OtherUser:
    monkeypatch.setattr(sys, "executable", interpreter())
    return other_user(USER)


@pytest.fixture
def marks(open_folder: Path) -> Path:
    """A folder that everybody may write to."""
    path = open_folder / "marks"
    path.mkdir()
    path.chmod(0o777)
    return path


@pytest.fixture
def seen(open_folder: Path) -> Path:
    """The file in which the library records as which user it is loaded."""
    return open_folder / "seen"


@pytest.fixture
def library(open_folder: Path, seen: Path) -> str:
    """A library that an earlier trial may have left."""
    return library_that_says(open_folder, seen)


async def started(
    folder: Path, args: Sequence[str], env: Mapping[str, str], user: OtherUser | None
) -> TrialProcess:
    spelled = user.spelled if user is not None else ""
    launch = Launch(args=tuple(args), env=env, working_dir="", log_path=folder / "log", user=spelled)
    with (folder / "log").open("ab") as output:
        return await TrialProcess.spawn(launch, output)


async def ran(folder: Path, args: Sequence[str], env: Mapping[str, str], user: OtherUser | None) -> str:
    """What a program prints."""
    process = await started(folder, args, env, user)
    code = await process.wait()
    await process.group_gone()
    said = (folder / "log").read_text()
    assert code == 0, said
    return said


@pytest.mark.parametrize("variable", ["LD_PRELOAD", "LD_AUDIT"])
async def test_a_studys_library_is_loaded_as_the_trials_user_alone(
    variable: str, library: str, seen: Path, open_folder: Path, user: OtherUser
) -> None:
    await ran(open_folder, [interpreter(), "-c", ""], {variable: library}, user)
    loaded = await asyncio.to_thread(seen.read_text)
    assert {line.rpartition(" ")[0] for line in loaded.splitlines()} == {f"{user.uid} {user.uid} {user.gid}"}


async def test_no_variable_of_a_study_is_there_while_its_process_is_root(
    library: str, open_folder: Path, user: OtherUser, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An interpreter in place of the worker's records its environment; the trial gets all of the variables."""
    noted = open_folder / "environment"
    witness = open_folder / "python"
    witness.write_text(f'#!/bin/sh\n[ "$(id -u)" = 0 ] && env -0 >{noted}\nexec {interpreter()} "$@"\n')
    witness.chmod(0o755)
    monkeypatch.setattr(sys, "executable", str(witness))
    monkeypatch.setenv("LD_LIBRARY_PATH", "/of/the/worker")
    theirs = dict.fromkeys((*OBEYED, LEASE_VARIABLE, "MODEL"), "/of/the/study")
    theirs |= {
        "LD_PRELOAD": library,
        "LD_AUDIT": library,
        "GLIBC_TUNABLES": "glibc.malloc.check=1",
        "EMPTY": "",
    }
    said = await ran(open_folder, ["/usr/bin/env", "-0"], theirs, user)
    found = dict(entry.split("=", 1) for entry in noted.read_text().split("\0") if entry)
    assert {name: value for name, value in found.items() if name not in OF_SHELLS} == {
        "LD_LIBRARY_PATH": "/of/the/worker"
    }
    assert dict(entry.split("=", 1) for entry in said.split("\0") if entry) == theirs


@pytest.mark.parametrize("other", [True, False])
async def test_a_program_is_looked_for_on_the_trials_path_by_the_trials_user(
    open_folder: Path, user: OtherUser, monkeypatch: pytest.MonkeyPatch, *, other: bool
) -> None:
    for name, mode in (("closed", 0o700), ("open", 0o755), ("workers", 0o755)):
        (open_folder / name).mkdir()
        (open_folder / name / "train").write_text(f"#!/bin/sh\necho {name}\n")
        (open_folder / name / "train").chmod(0o755)
        (open_folder / name).chmod(mode)
    monkeypatch.setenv("PATH", f"{open_folder / 'workers'}{os.pathsep}{os.environ['PATH']}")
    path = os.pathsep.join((str(open_folder / "closed"), str(open_folder / "open"), "/usr/bin", "/bin"))
    said = await ran(open_folder, ["train"], {"PATH": path}, user if other else None)
    assert said == ("open\n" if other else "closed\n")


async def test_a_key_of_the_workers_session_is_out_of_the_trials_reach(
    open_folder: Path, user: OtherUser
) -> None:
    """A Kerberos ticket is one. The kernel lets everyone who inherits the session's keyring read it."""
    libc = ctypes.CDLL(None, use_errno=True)
    machine = os.uname().machine
    if machine != "x86_64":
        pytest.skip(f"the numbers of system calls are not known for {machine}")
    key = libc.syscall(248, b"user", b"headrace-test", b"hr-s3cr3t", 9, _SESSION_KEYRING)
    if key < 0:
        pytest.skip(f"no keys here: {os.strerror(ctypes.get_errno())}")
    call = f"syscall({_KEYCTL}, {_READ}, {key}, ctypes.c_char_p(b'x' * 16), 16)"
    reads = f"import ctypes; print(ctypes.CDLL(None).{call})"
    try:
        assert await ran(open_folder, [interpreter(), "-c", reads], {}, None) == "9\n"
        (open_folder / "log").unlink()
        assert await ran(open_folder, [interpreter(), "-c", reads], {}, user) == "-1\n"
    finally:
        libc.syscall(_KEYCTL, _UNLINK, key, _SESSION_KEYRING)


@pytest.mark.parametrize("env", [{"A=B": "x"}, {"": "x"}, {"A": "x\0LD_PRELOAD=y"}, {"A\0B": "x"}])
async def test_an_environment_that_no_process_can_have(open_folder: Path, env: dict[str, str]) -> None:
    with pytest.raises(CannotStartError, match="environment variable"):
        await started(open_folder, ["true"], env, None)


async def test_an_environment_larger_than_a_pipe(open_folder: Path, user: OtherUser) -> None:
    env = {f"NAME_{number}": "ü" * 40_000 for number in range(10)}
    said = await ran(open_folder, ["/usr/bin/env", "-0"], env, user)
    assert dict(entry.split("=", 1) for entry in said.split("\0") if entry) == env


async def test_a_child_that_left_everything_ends_with_its_trial_and_no_other_trials_does(
    open_folder: Path, marks: Path, user: OtherUser
) -> None:
    first_left, second_left = marks / "first", marks / "second"
    program = [interpreter(), "-c", LEAVES]
    # the worker's own
    other = await asyncio.create_subprocess_exec("sleep", "300", start_new_session=True)
    try:
        second = await started(
            open_folder, [*program, str(second_left), "stays"], {LEASE_VARIABLE: "b"}, user
        )
        try:
            first = await started(open_folder, [*program, str(first_left)], {LEASE_VARIABLE: "a"}, user)
            assert await first.wait() == 0, (open_folder / "log").read_text()
            stray = psutil.Process(int(first_left.read_text()))
            assert stray.uids().effective == user.uid
            assert stray.environ().get(LEASE_VARIABLE) is None
            assert stray.ppid() != first.pid
            await first.group_gone()
            assert _over(stray)
            while not second_left.exists():
                await asyncio.sleep(0.01)
            theirs = psutil.Process(int(second_left.read_text()))
            assert not _over(theirs)
            assert second.runs
            assert other.returncode is None
        finally:
            await second.group_gone()
        assert _over(theirs)
        assert other.returncode is None
    finally:
        other.kill()
        await other.wait()


async def test_what_a_killed_daemon_left_ends_by_the_group_of_its_home(
    open_folder: Path, marks: Path, user: OtherUser
) -> None:
    """What the daemon of another home runs does not."""
    ours, theirs = own_groups.of_family("standby-1-1-"), own_groups.of_family("standby-1-2-")
    left = []
    for name, group in (("ours", ours), ("theirs", theirs)):
        member = OtherUser(
            name=user.name, uid=user.uid, gid=user.gid, groups=(*user.groups, group), home=user.home
        )
        process = await started(open_folder, [interpreter(), "-c", LEAVES, str(marks / name)], {}, member)
        await process.wait()
        left.append(psutil.Process(int((marks / name).read_text())))
    await end_strays(group=Group(ours))
    assert [_over(process) for process in left] == [True, False]
    await end_strays(group=Group(theirs, uid=user.uid))
    assert _over(left[1])


async def test_a_process_whose_first_thread_has_ended_is_no_zombie(
    open_folder: Path, marks: Path, user: OtherUser
) -> None:
    group = own_groups.of_new_process()
    member = OtherUser(
        name=user.name, uid=user.uid, gid=user.gid, groups=(*user.groups, group), home=user.home
    )
    program = (
        "import ctypes, os, sys, threading, time\n"
        "def live():\n"
        "    time.sleep(0.2)\n"
        "    open(sys.argv[1], 'w').write(str(os.getpid()))\n"
        "    time.sleep(600)\n"
        "if os.fork() == 0:\n"
        "    os.setsid()\n"
        "    threading.Thread(target=live).start()\n"
        "    ctypes.CDLL(None).syscall({'x86_64': 60}.get(os.uname().machine, 93), 0)\n"
    )
    process = await started(open_folder, [interpreter(), "-c", program, str(marks / "pid")], {}, member)
    await process.wait()
    async with asyncio.timeout(60):
        while not (marks / "pid").exists() or not (marks / "pid").read_text():
            await asyncio.sleep(0.05)
    left = psutil.Process(int((marks / "pid").read_text()))
    assert left.status() == psutil.STATUS_ZOMBIE, "as it looks"
    assert _threads_that_run(left.pid)
    await end_strays(group=Group(group, uid=user.uid))
    assert not _threads_that_run(left.pid)


async def test_a_trial_runs_nothing_that_another_one_left_in_the_users_home(
    open_folder: Path, marks: Path, user: OtherUser
) -> None:
    program = _with_user_site()
    _plant(program, open_folder, f"open({str(marks / 'ran')!r}, 'w')")
    for shut, ran in ((user.variables, False), ({}, True)):
        env = {**shut, "HOME": str(open_folder)}
        process = await started(open_folder, [program, "-c", "pass"], env, user)
        assert await process.wait() == 0
        assert (marks / "ran").exists() == ran


def _plant(program: str, home: Path, code: str) -> None:
    """Leave code in a home, where this Python runs it at its start."""
    asks = "import site; print(site.getusersitepackages())"
    env = {"HOME": str(home)}
    told = subprocess.run([program, "-c", asks], env=env, capture_output=True, text=True, check=True)
    folder = Path(told.stdout.strip())
    folder.mkdir(parents=True)
    (folder / "usercustomize.py").write_text(code)


def _with_user_site() -> str:
    """A Python that loads code from its user's home; a virtual environment does not."""
    for program in ("/usr/bin/python3", "/usr/local/bin/python3"):
        if Path(program).exists() and "True" in subprocess.run(
            [program, "-c", "import site; print(site.ENABLE_USER_SITE)"], env={}, capture_output=True, text=True
        ).stdout:  # fmt: skip
            return program
    pytest.skip("no Python outside of virtual environments")


async def test_a_trial_gains_nothing_by_setuid_programs(
    open_folder: Path, marks: Path, user: OtherUser
) -> None:
    program = (
        "import sys; line = [l for l in open('/proc/self/status') if 'NoNewPrivs' in l]; "
        "open(sys.argv[1], 'w').write(''.join(line))"
    )
    process = await started(open_folder, [interpreter(), "-c", program, str(marks / "told")], {}, user)
    assert await process.wait() == 0
    assert (marks / "told").read_text().split() == ["NoNewPrivs:", "1"]


def test_the_groups_lie_where_nobody_gives_any_away() -> None:
    drawn = {own_groups.of_new_process() for _ in range(100)}
    homes = {own_groups.of_family(f"standby-1-{number}-") for number in range(100)}
    assert len(drawn) == len(homes) == 100
    assert drawn.isdisjoint(homes)
    assert all(1879048192 <= group <= 2147483647 for group in drawn | homes)
    assert own_groups.covers(0, 0, 4294967295)
    assert not own_groups.covers(0, 100000, 65536)  # as in a container with a user namespace


def _threads_that_run(pid: int) -> int:
    tasks = Path(f"/proc/{pid}/task").glob("*/stat")  # a process that is gone has none
    return sum(stat.read_text().rpartition(")")[2].split()[0] not in "ZX" for stat in tasks)


def _over(process: psutil.Process) -> bool:
    try:
        return process.status() in {psutil.STATUS_ZOMBIE, psutil.STATUS_DEAD}
    except psutil.NoSuchProcess:
        return True


@as_root
def test_which_folders_the_user_may_enter(open_folder: Path) -> None:
    found = other_user(USER)
    (closed := open_folder / "closed").mkdir(mode=0o700)
    (inside := closed / "inside").mkdir(mode=0o755)
    assert found.may_enter(open_folder)
    assert found.may_enter(open_folder / "not made yet")
    assert not found.may_enter(closed)
    assert not found.may_enter(inside)
