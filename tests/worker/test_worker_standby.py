"""Standby processes: taken by the slot's next trial, with no visible difference from fresh ones, or discarded."""

import asyncio
import signal
import textwrap
from typing import Any

import psutil
import pytest
from callable_trials import PROGRAM, Trials
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker import standby as module
from headrace_worker.home import identity


@pytest.fixture
async def trials(site: Site, scheduler: ScriptedScheduler) -> Trials:
    # however long a report waits for its decision, no new session is opened
    scheduler.interval_s = 60.0
    site.start()
    return Trials(site, await scheduler.stream())


async def test_the_next_trial_takes_the_standby_process_and_sees_what_a_fresh_one_sees(
    trials: Trials,
) -> None:
    cold = await trials.begin()
    ready = await trials.ready(but={cold["pid"]})
    assert ready != cold["pid"]
    cold_exit = await trials.end()
    warm = await trials.begin()
    assert warm["pid"] == warm["imported"]["pid"] == ready
    assert warm["imported"]["at"] < warm["began"]
    warm_exit = await trials.end()
    for seen in (cold, warm):
        lease, trial = seen["assign"].lease.lease_id, seen["assign"].lease.trial
        assert sorted(seen["lease in /proc"]) == [f"HEADRACE_LEASE_ID={lease}", f"HEADRACE_TRIAL={trial}"]
        assert seen["environ"].pop("HEADRACE_LEASE_ID") == lease
        assert seen["environ"].pop("HEADRACE_TRIAL") == trial
        assert seen["open"][2].endswith(f"{trial.rpartition('/')[2]}.log")
        seen["open"] = [
            path.rpartition("/")[2].replace(trial.rpartition("/")[2], "N") for path in seen["open"]
        ]
    same = {"environ", "cwd", "argv", "random", "group", "open", "params", "main", "version"}
    assert {name: cold[name] for name in same} == {name: warm[name] for name in same}
    assert [line for line in cold_exit.log_tail.splitlines() if "headrace:" not in line] == [
        "importing",
        "training",
    ]
    assert [line for line in warm_exit.log_tail.splitlines() if "headrace:" not in line] == [
        "importing",
        "training",
    ]
    assert warm_exit.log_tail.startswith(f"headrace: {warm['assign'].lease.trial} from step 0")
    assert (warm_exit.outcome, warm_exit.exit_code) == (cold_exit.outcome, cold_exit.exit_code)


@pytest.mark.full
async def test_every_process_runs_one_trial(trials: Trials) -> None:
    pids = []
    for _ in range(4):
        pids.append((await trials.begin())["pid"])
        await trials.ready(but=set(pids))
        await trials.end()
    assert len(set(pids)) == 4


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    "change", ["what it executes", "the module", "what it imports", "the module, to what fails"]
)
async def test_a_process_that_imported_other_files_starts_again(trials: Trials, change: str) -> None:
    part = trials.site.root / "study_part.py"
    part.write_text("VERSION = 1\n")
    loads = "from study_part import VERSION"
    if change == "what it executes":
        loads = f"import runpy\nVERSION = runpy.run_path({str(part)!r})['VERSION']"
    trials.write(PROGRAM.replace("VERSION = 1", loads))
    first = await trials.begin()
    ready = await trials.ready(but={first["pid"]})
    if change == "the module":
        trials.write(PROGRAM.replace("VERSION = 1", "VERSION = 2"))
    elif change in ("what it imports", "what it executes"):
        # Of another size: Python detects changed files by their size and the second of their change.
        part.write_text("VERSION = 2  # changed\n")
    else:
        trials.write("raise ValueError('no good')")
    await trials.end()
    if change == "the module, to what fails":
        trials.stream.send(assign=trials.assign())
        exited = await trials.stream.get("exited", 2)
        assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
        assert exited.error == "ValueError: no good"
        return
    second = await trials.begin()
    assert second["version"] == 2
    assert second["pid"] == ready  # the same process, which imported again
    assert second["imported"]["at"] > first["began"]
    assert [line for line in (await trials.end()).log_tail.splitlines() if line == "importing"] == [
        "importing"
    ]


@pytest.mark.full
async def test_an_import_that_fails_only_ahead_is_not_held_against_the_trial(trials: Trials) -> None:
    first = await trials.begin()
    trials.write(
        "import os, pathlib; pathlib.Path(os.environ['MARKS'], f'imported-{os.getpid()}').touch(); 1/0"
    )
    # perhaps before the change; then it has another reason to restart
    await trials.ready(but={first["pid"]})
    trials.write(PROGRAM.replace("VERSION = 1", "VERSION = 3"))
    await trials.end()
    assert (await trials.begin())["version"] == 3


@pytest.mark.cases(1)
@pytest.mark.parametrize("change", [{"prestart": False}, {"python": "/usr/bin/env"}])
async def test_a_launch_that_differs_discards_the_standby_process(
    trials: Trials, change: dict[str, Any]
) -> None:
    first = await trials.begin()
    ready = await trials.ready(but={first["pid"]})
    await trials.end()
    trials.stream.send(assign=trials.assign(**change))
    await until(lambda: not psutil.pid_exists(ready), "the process that stood by is gone")
    await trials.stream.get("exited", 2) if "python" in change else await trials.stream.get("report", 2)


async def test_a_template_may_forbid_it(trials: Trials) -> None:
    await trials.begin(prestart=False)
    await trials.end()
    second = await trials.begin(prestart=False)
    assert trials.imported() == 2
    assert second["imported"]["at"] > second["began"] - 5


@pytest.mark.full
async def test_an_idle_slot_lets_go_and_the_daemon_leaves_nothing(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    first = await trials.begin()
    ready = await trials.ready(but={first["pid"]})
    await trials.end()
    await until(lambda: not psutil.pid_exists(ready), "the process is thrown away")
    second = await trials.begin()
    waiting = await trials.ready(but={first["pid"], second["pid"], ready})
    await trials.site.stop()
    assert not psutil.pid_exists(waiting)


@pytest.mark.full
async def test_one_that_was_killed_is_not_missed(trials: Trials) -> None:
    first = await trials.begin()
    ready = await trials.ready(but={first["pid"]})
    process = psutil.Process(ready)
    process.kill()
    await asyncio.to_thread(psutil.wait_procs, [process], 5)
    await trials.end()
    assert (await trials.begin())["pid"] != ready


async def test_nothing_is_started_ahead_where_memory_is_short(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "MEMORY_KEPT_FREE", 1.1)
    await trials.begin()
    await trials.end()
    await trials.begin()
    assert trials.imported() == 2


@pytest.mark.full
async def test_what_leaves_the_group_of_such_a_process_is_found_by_its_lease(trials: Trials) -> None:
    stray = """
    if os.fork() == 0:  # without an exec: its environment is the one that the process was started with
        os.setsid()
        (MARKS / f"stray-{t.number}").write_text(str(os.getpid()))
        time.sleep(600)
    for step in t.steps():
    """
    trials.write(
        PROGRAM.replace("    for step in t.steps():\n", textwrap.dedent(stray).replace("\n", "\n    ")[1:])
    )
    first = await trials.begin()
    await trials.ready(but={first["pid"]})
    await trials.end()
    second = await trials.begin()
    path = trials.site.marks / f"stray-{second['assign'].lease.trial.rpartition('/')[2]}"
    pid = int(await until(lambda: path.exists() and path.read_text(), "the stray's process id"))
    assert psutil.Process(pid).environ()["HEADRACE_LEASE_ID"] == second["assign"].lease.lease_id
    await trials.end()
    await until(
        lambda: not psutil.pid_exists(pid) or psutil.Process(pid).status() == "zombie", "it is killed"
    )


@pytest.mark.full
async def test_a_slot_that_went_idle_before_its_process_had_started_lets_go_too(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    spawn, over, started = module._spawn, asyncio.Event(), list[int]()

    async def spawn_slowly(*arguments: Any) -> Any:
        await over.wait()
        standby = await spawn(*arguments)
        started.append(standby.process.pid)
        return standby

    monkeypatch.setattr(module, "_spawn", spawn_slowly)
    await trials.begin()
    await trials.end()
    over.set()
    await until(lambda: started and not psutil.pid_exists(started[0]), "the process is thrown away")


STARTS_ANOTHER = """
import subprocess
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
Path(MARKS, f"pid-for-{os.getpid()}").write_text(str(child.pid))
Path(MARKS, f"pid-for-{os.getpid()}").rename(Path(MARKS, f"child-of-{os.getpid()}"))
"""


@pytest.mark.full
@pytest.mark.parametrize("fate", ["taken", "thrown away"])
async def test_what_a_module_starts_while_it_is_imported_ends_with_its_process(
    trials: Trials, fate: str
) -> None:
    first = await trials.begin()
    trials.write(PROGRAM.replace("\ndef train", STARTS_ANOTHER + "\ndef train"))
    await trials.ready(but={first["pid"]})
    await trials.end()
    second = await trials.begin()  # of the new program, which the standby process had not imported
    ready = await trials.ready(but={first["pid"], second["pid"]})
    await until((trials.site.marks / f"child-of-{ready}").exists, "the child of what stands by")
    child = int((trials.site.marks / f"child-of-{ready}").read_text())
    await trials.end()
    if fate == "taken":
        assert (await trials.begin())["pid"] == ready
        assert _lives(child)
        await trials.end()
    else:
        await trials.site.stop()
    assert not _lives(child)


@pytest.mark.full
async def test_a_daemon_ends_what_was_started_where_its_predecessor_stood_by(site: Site) -> None:
    site.settings.home.mkdir(parents=True, exist_ok=True)
    identity(site.settings.home)
    names = [f"{module.family(site.settings.home)}1234....", f"{module.family(site.root)}1234...."]
    ours, another_home_s = [
        await asyncio.create_subprocess_exec("sleep", "100", env={"HEADRACE_LEASE_ID": name})
        for name in names
    ]
    try:
        site.start()
        assert await asyncio.wait_for(ours.wait(), 60) == -signal.SIGKILL
        assert another_home_s.returncode is None
    finally:
        another_home_s.kill()
        await another_home_s.wait()


def _lives(pid: int) -> bool:
    return psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE
