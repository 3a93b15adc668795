"""Running trials can be told apart in `ps`: each process's title names its study, its trial and its rank."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
from scripted_scheduler import ScriptedScheduler, Stream, until
from worker_site import Site

from headrace.v1 import event_pb2, spec_pb2, worker_pb2

PROGRAM = """
import os
from pathlib import Path
from headrace import trial

def train(t):
    path = Path(os.environ["MARKS"], f"{t.number}-{t.rank}")
    path.with_suffix(".new").write_text(str(os.getpid()))
    path.with_suffix(".new").rename(path)
    for step in t.steps():
        t.report(loss=1.0)

if __name__ == "__main__":
    train(trial.current())
"""
STUDY = "a-study-whose-name-is-about-as-long-as-the-name-of-a-study-can-be"[:63]


def shown(pid: int, what: str = "args") -> str:
    """What `ps` shows of a process."""
    done = subprocess.run(
        ["ps", "-o", what, "-ww", "-p", str(pid)], capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()[1].strip()


def environment_of(pid: int) -> bytes:
    return Path(f"/proc/{pid}/environ").read_bytes()


def assign(site: Site, number: int, study: str = "digits", **grant: object) -> worker_pb2.Assign:
    (site.root / "study_module.py").write_text(textwrap.dedent(PROGRAM))
    made = site.assign(["unused"], number=number, milestone=1)
    made.lease.trial = f"studies/{study}/trials/{number}"
    made.template.callable = "study_module:train"
    if grant:
        made.grant.CopyFrom(worker_pb2.Grant(**grant))
    return made


async def begun(site: Site, number: int, rank: int = 0) -> int:
    """The process id of a trial that trains."""
    path = site.marks / f"{number}-{rank}"
    await until(path.exists, f"trial {number} begins")
    return int(path.read_text())


async def end(stream: Stream) -> None:
    exits = len(stream.all("exited"))
    stream.decide(stream.all("report")[-1], event_pb2.DECISION_ACTION_STOP)
    await stream.get("exited", exits + 1)


@pytest.mark.full
async def test_a_fresh_process_and_one_that_stood_by(site: Site, scheduler: ScriptedScheduler) -> None:
    scheduler.interval_s = 60.0
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=assign(site, 7))
    cold = await begun(site, 7)
    assert shown(cold) == "headrace: trial digits/7"
    assert shown(cold, "comm") == "digits/7"
    await stream.get("report", 1)

    def standing_by() -> list[int]:
        listed = subprocess.run(
            ["ps", "-eww", "-o", "pid,ppid,args"], capture_output=True, text=True, check=True
        )
        rows = [line.split(None, 2) for line in listed.stdout.splitlines()]
        return [
            int(pid)
            for pid, parent, title in rows[1:]
            if title == "headrace: stands by for study_module:train" and int(parent) == _parent(cold)
        ]

    (ready,) = await until(standing_by, "a process that stands by")
    await end(stream)
    stream.send(assign=assign(site, 8))
    warm = await begun(site, 8)
    assert warm == ready
    assert shown(warm) == "headrace: trial digits/8"
    assert shown(warm, "comm") == "digits/8"
    environment = environment_of(warm)
    assert b"\0HEADRACE_TRIAL=studies/digits/trials/8\0" in b"\0" + environment
    assert b"MARKS=" in environment, "the environment, which lies behind the title, is as it was"
    await stream.get("report", 2)
    await end(stream)


async def test_the_ranks_of_a_gang(site: Site, scheduler: ScriptedScheduler) -> None:
    scheduler.interval_s = 60.0
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=assign(site, 3, slots=[0, 1], processes=spec_pb2.PROCESSES_PER_SLOT))
    ranks = [await begun(site, 3, rank) for rank in (0, 1)]
    assert [shown(pid) for pid in ranks] == [
        "headrace: trial digits/3 rank 0",
        "headrace: trial digits/3 rank 1",
    ]
    assert shown(_parent(ranks[0])) == "headrace: trial digits/3, leads 2 processes"
    await stream.get("report", 1)
    await end(stream)


async def test_a_script_of_ones_own_and_a_long_name(site: Site, scheduler: ScriptedScheduler) -> None:
    scheduler.interval_s = 60.0
    site.start()
    stream = await scheduler.stream()
    made = assign(site, 12, study=STUDY)
    made.template.command.CopyFrom(
        spec_pb2.CommandLine(args=[sys.executable, str(site.root / "study_module.py")])
    )
    stream.send(assign=made)
    pid = await begun(site, 12)
    title = shown(pid)
    assert title.startswith("headrace: trial a-study-whose-name")
    assert title.endswith("/12"), "the study's name gives way, the number stays"
    assert shown(pid, "comm") == "a-study-whos/12"
    await stream.get("report", 1)
    await end(stream)


@pytest.mark.parametrize(
    ("arguments", "study", "title"),
    [
        (["python", "t.py"], "digits", "digits/7"),
        (["python", "t.py"], "a-longer-name", "a-longer-/7"),
        (["python", "t.py", "--learning-rate", "1"], "digits", "headrace: trial digits/7"),
        (["p", "t"], "digits", "d/7"),
    ],
)
def test_short_arguments_keep_the_number(
    tmp_path: Path, arguments: list[str], study: str, title: str
) -> None:
    assert title_of(tmp_path, arguments, f"studies/{study}/trials/7") == title


def test_arguments_that_have_no_room_for_the_number_stay(tmp_path: Path) -> None:
    assert title_of(tmp_path, ["p", "t"], "studies/digits/trials/1234567") == "p t"


def title_of(folder: Path, arguments: list[str], trial: str) -> str:
    """The arguments that the kernel shows of a script that has set its own title."""
    script = (
        "import os\nfrom headrace.trial.title import show_trial\nshow_trial(os.environ)\n"
        "print(open('/proc/self/cmdline').read(), end='')\n"
    )
    (folder / arguments[1]).write_text(script)
    done = subprocess.run(
        arguments,
        executable=sys.executable,
        cwd=folder,
        env={**os.environ, "HEADRACE_TRIAL": trial, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))},
        capture_output=True,
        text=True,
        check=True,
    )
    return done.stdout.replace("\0", " ").strip()


def _parent(pid: int) -> int:
    return int(shown(pid, "ppid"))
