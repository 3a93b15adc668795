"""A program that forks and exits faster than anybody can check ends with its trial, if the kernel has control
groups."""

import asyncio
import os
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from other_user_site import COMPILER, USER, as_root, interpreter

from headrace_worker import callers, control_groups, own_groups
from headrace_worker.launch import Launch
from headrace_worker.process import TrialProcess
from headrace_worker.run_as import other_user

HOPS = """
#include <fcntl.h>
#include <stdio.h>
#include <unistd.h>
int main(int count, char **arguments) {
    if (fork()) _exit(0);
    setsid();
    for (long hops = 1;; hops++) {
        if (fork()) _exit(0);
        if (hops % 100 == 0) {
            int file = open(arguments[1], O_WRONLY | O_CREAT | O_TRUNC, 0666);
            dprintf(file, "%ld", hops);
            close(file);
        }
    }
}
"""
pytestmark = [
    as_root,
    pytest.mark.skipif(
        control_groups._own() is None, reason="no cgroup v2 in which this user may make control groups"
    ),
]


async def started(folder: Path, *args: str) -> TrialProcess:
    user = other_user(USER)
    launch = Launch(args=args, env={}, working_dir="", log_path=folder / "log", user=user.spelled)
    with (folder / "log").open("ab") as output:
        return await TrialProcess.spawn(launch, output)


@pytest.fixture
def beats(open_folder: Path) -> Path:
    """The file in which a program of the trials' user says that it runs."""
    open_folder.chmod(0o777)
    return open_folder / "beats"


@pytest.fixture(autouse=True)
def python(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", interpreter())


def control_group(pid: int | str) -> str:
    return Path(f"/proc/{pid}/cgroup").read_text()


def said(path: Path) -> str:
    return path.read_text() if path.exists() else ""


def groups(above: Path) -> list[str]:
    return [one.name for one in above.glob("headrace-*")]


def processes(group: Path) -> list[str]:
    return (group / "cgroup.procs").read_text().split()


@pytest.fixture
def hops(open_folder: Path) -> str:
    """A program that does nothing but fork and exit, as long as it may."""
    source, program = open_folder / "hops.c", open_folder / "hops"
    source.write_text(HOPS)
    subprocess.run([str(COMPILER), "-static", "-O1", "-o", str(program), str(source)], check=True)
    return str(program)


@pytest.mark.skipif(COMPILER is None, reason="no C compiler")
async def test_a_process_that_hops_ends_with_its_trial(open_folder: Path, beats: Path, hops: str) -> None:
    process = await started(open_folder, hops, str(beats))
    assert process.control_group is not None
    assert await process.wait() == 0
    async with asyncio.timeout(30):
        while not said(beats):
            await asyncio.sleep(0.01)
    async with asyncio.timeout(10):
        await process.group_gone()
    assert not process.control_group.exists()
    last, until = said(beats), time.monotonic() + 0.5
    while time.monotonic() < until:
        await asyncio.sleep(0.05)
    assert said(beats) == last, "nothing hops any more"


async def test_what_a_killed_daemon_left_ends_with_its_control_group(
    open_folder: Path, tmp_path: Path
) -> None:
    user = other_user(USER)
    ours = own_groups.of_family("standby-1-1-")
    spelled = f"{user.uid}:{user.gid}:{ours}"
    launch = Launch(args=("sleep", "300"), env={}, working_dir="", log_path=open_folder, user=spelled)
    with (open_folder / "log").open("ab") as output:
        process = await TrialProcess.spawn(launch, output)
    assert process.control_group is not None
    assert processes(process.control_group) == [str(process.pid)]
    await control_groups.end_all(tmp_path, own_groups.of_family("standby-1-2-"))
    assert process.runs, "another home's"
    await control_groups.end_all(tmp_path, ours)
    assert await process.wait() == -9
    assert not process.control_group.exists()


@pytest.fixture
def elsewhere() -> Iterator[Path]:
    """The control group of another login, to which the daemon belongs for a while."""
    above = control_groups._own()
    assert above is not None
    folder = above / f"login-of-a-test-{os.getpid()}"
    folder.mkdir()
    try:
        yield folder
    finally:
        for left in (*folder.glob("headrace-*"), folder):
            left.rmdir()


async def test_a_daemon_that_starts_elsewhere_ends_what_was_left(
    open_folder: Path, tmp_path: Path, elsewhere: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The killed daemon had been started in another login than the next one on its home."""
    home, other = tmp_path / "home", tmp_path / "other"
    home.mkdir()
    other.mkdir()
    ours, others = own_groups.of_family("standby-1-1-"), own_groups.of_family("standby-1-2-")
    (elsewhere / f"headrace-{others}-1").mkdir()
    with monkeypatch.context() as there:
        there.setattr(control_groups, "_own", lambda: elsewhere)
        await control_groups.end_all(home, ours)
        await control_groups.end_all(other, others)
        (elsewhere / f"headrace-{others}-1").mkdir()
        user = other_user(USER)
        spelled = f"{user.uid}:{user.gid}:{ours}"
        launch = Launch(args=("sleep", "300"), env={}, working_dir="", log_path=open_folder, user=spelled)
        with (open_folder / "log").open("ab") as output:
            process = await TrialProcess.spawn(launch, output)
    assert process.control_group is not None
    assert process.control_group.parent == elsewhere
    with monkeypatch.context() as full:
        full.setattr(control_groups, "end", _forbidden)
        await control_groups.end_all(home, ours)
    assert process.runs, "the kernel forbade it: it is left to the next daemon"
    await control_groups.end_all(home, ours)
    assert await process.wait() == -9
    assert not process.control_group.exists()
    assert groups(elsewhere) == [f"headrace-{others}-1"], "another home's"
    assert (home / "control-groups").read_text() == str(control_groups._own()), "nothing is left there"


async def _forbidden(_: Path) -> None:
    pass


async def test_a_trial_in_a_control_group_of_its_own_is_not_taken_for_one_of_a_container(
    open_folder: Path,
) -> None:
    process = await started(open_folder, "sleep", "300")
    try:
        assert process.control_group is not None
        assert control_group(process.pid) != control_group("self")
        assert not callers._apart(process.pid)
    finally:
        await process.group_gone()


async def test_a_program_that_cannot_start_leaves_no_control_group(open_folder: Path) -> None:
    above = control_groups._own()
    assert above is not None
    before = sorted(above.glob("headrace-*"))
    with pytest.raises(Exception, match="cannot be started"):
        await started(open_folder, "/nowhere/at/all")
    assert sorted(above.glob("headrace-*")) == before


def test_without_root_none_is_made(monkeypatch: pytest.MonkeyPatch) -> None:
    control_groups._own.cache_clear()
    monkeypatch.setattr(os, "geteuid", lambda: 1000)
    try:
        assert control_groups.make([1, 2]) is None
    finally:
        control_groups._own.cache_clear()
