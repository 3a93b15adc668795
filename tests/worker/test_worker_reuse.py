"""With `reuse`, a process runs several trials, and each sees what it would see in a process of its own."""

import signal
import textwrap
from typing import Any

import psutil
import pytest
from callable_trials import PROGRAM, Trials
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import standby as module

PAUSE = event_pb2.DECISION_ACTION_PAUSE


@pytest.fixture
async def trials(site: Site, scheduler: ScriptedScheduler) -> Trials:
    # however long a report waits for its decision, no new session is opened
    scheduler.interval_s = 60.0
    site.start()
    return Trials(site, await scheduler.stream())


def at_the_end(lines: str) -> str:
    """The program, which does this once a decision has ended its loop."""
    return PROGRAM + textwrap.indent(textwrap.dedent(lines), "    ")


async def test_the_next_trial_runs_in_the_same_process_and_sees_what_a_fresh_one_sees(trials: Trials) -> None:
    first = await trials.begin(reuse=True)
    first_exit = await trials.end()
    second = await trials.begin(reuse=True)
    second_exit = await trials.end()
    assert second["pid"] == first["pid"]
    assert trials.imported() == 1  # and none stands by
    for seen, exited in ((first, first_exit), (second, second_exit)):
        lease, trial = seen["assign"].lease.lease_id, seen["assign"].lease.trial
        assert sorted(seen["lease in /proc"]) == [f"HEADRACE_LEASE_ID={lease}", f"HEADRACE_TRIAL={trial}"]
        assert seen["environ"].pop("HEADRACE_LEASE_ID") == lease
        assert seen["environ"].pop("HEADRACE_TRIAL") == trial
        assert seen["open"][2].endswith(f"{trial.rpartition('/')[2]}.log")
        seen["open"] = [
            path.rpartition("/")[2].replace(trial.rpartition("/")[2], "N") for path in seen["open"]
        ]
        assert f"headrace: {trial} from step 0" in exited.log_tail
        assert exited.log_tail.count("training") == 1
        assert exited.outcome == worker_pb2.EXIT_OUTCOME_RELEASED
        assert exited.left_behind == ""
    same = {"environ", "cwd", "argv", "random", "group", "open", "params", "main", "version"}
    assert {name: first[name] for name in same} == {name: second[name] for name in same}
    waits = psutil.Process(first["pid"]).environ()["HEADRACE_LEASE_ID"]
    assert waits.startswith("standby-")  # no lease: nothing that is done to the last one is done to it


async def test_a_trial_that_returns_leaves_its_process_to_the_next(trials: Trials) -> None:
    trials.write(PROGRAM.replace("for step in t.steps():\n        t.report(loss=1.0)", "t.report(loss=1.0)"))
    pids = set()
    for number in range(1, 4):
        assign = trials.assign(reuse=True)
        assign.next_milestone = 9
        trials.stream.send(assign=assign)
        exited = await trials.stream.get("exited", number)
        assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
        path = trials.site.marks / assign.lease.trial.rpartition("/")[2]
        pids.add(path.read_text().partition('"pid": ')[2].partition(",")[0])
    assert len(pids) == 1


@pytest.mark.parametrize(
    ("ending", "outcome"),
    [
        ("raise ValueError('no')", worker_pb2.EXIT_OUTCOME_FAILED),
        ("os._exit(3)", worker_pb2.EXIT_OUTCOME_FAILED),
        ("os.kill(os.getpid(), 9)", worker_pb2.EXIT_OUTCOME_LOST),
    ],
)
async def test_a_trial_that_fails_ends_its_process(trials: Trials, ending: str, outcome: int) -> None:
    trials.write(at_the_end(ending))
    first = await trials.begin(reuse=True)
    exited = await trials.end()
    assert exited.outcome == outcome
    trials.write(PROGRAM)
    second = await trials.begin(reuse=True)
    assert second["pid"] != first["pid"]
    assert (await trials.end()).outcome == worker_pb2.EXIT_OUTCOME_RELEASED


async def test_infeasible_is_no_failure(trials: Trials) -> None:
    trials.write(
        PROGRAM.replace(
            "    for step in t.steps():\n",
            "    raise __import__('headrace').trial.Infeasible('too wide')\n    for step in []:\n",
        )
    )
    for number in (1, 2):
        trials.stream.send(assign=trials.assign(reuse=True))
        exited = await trials.stream.get("exited", number)
        assert exited.outcome == worker_pb2.EXIT_OUTCOME_INFEASIBLE
    assert trials.imported() == 1


LEAVES_A_CHILD = """
import subprocess
child = subprocess.Popen(["sleep", "100"], start_new_session=True)
(MARKS / "child").write_text(str(child.pid))
"""


async def test_what_a_trial_leaves_behind_ends_its_process_and_is_told(trials: Trials) -> None:
    trials.write(at_the_end(LEAVES_A_CHILD))
    first = await trials.begin(reuse=True)
    exited = await trials.end()
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    assert "process" in exited.left_behind
    child = int((trials.site.marks / "child").read_text())
    await until(lambda: not psutil.pid_exists(child), "the child is gone")
    assert (await trials.begin(reuse=True))["pid"] != first["pid"]
    await trials.ready(but={first["pid"]})  # once a process was not reused, another one stands by again


async def test_a_cancelled_trial_ends_its_process(trials: Trials) -> None:
    first = await trials.begin(reuse=True)
    trials.stream.send(cancel=worker_pb2.Cancel(lease=first["assign"].lease, reason="deleted"))
    await until(lambda: not psutil.pid_exists(first["pid"]), "the process is gone")
    assert (await trials.begin(reuse=True))["pid"] != first["pid"]


async def test_one_that_is_killed_while_it_waits_costs_no_trial_anything(trials: Trials) -> None:
    first = await trials.begin(reuse=True)
    await trials.end()
    psutil.Process(first["pid"]).suspend()  # it gets the next trial, and does nothing with it
    trials.stream.send(assign=trials.assign(reuse=True))
    attempts = trials.site.daemons[-1][0]._attempts
    await until(
        lambda: any(one.host.leader == first["pid"] for one in attempts.values()), "the process has the trial"
    )
    psutil.Process(first["pid"]).send_signal(signal.SIGKILL)
    report = await trials.stream.get("report", 2)
    assert report.step == 1
    assert (await trials.end()).outcome == worker_pb2.EXIT_OUTCOME_RELEASED


async def test_changed_code_is_imported_again(trials: Trials) -> None:
    first = await trials.begin(reuse=True)
    await trials.end()
    trials.write(PROGRAM.replace("VERSION = 1", "VERSION = 2  # of another size"))
    second = await trials.begin(reuse=True)
    assert (first["version"], second["version"]) == (1, 2)
    await trials.end()
    third = await trials.begin(reuse=True)
    trials.write(PROGRAM.replace("VERSION = 1", "VERSION = 3  # again of another size"))
    exited = await trials.end()
    assert exited.left_behind == "study_module.py was written after the process had imported it"
    assert (third["version"], (await trials.begin(reuse=True))["version"]) == (2, 3)


@pytest.mark.parametrize("change", [{"reuse": False}, {"python": "/usr/bin/env"}])
async def test_a_launch_that_differs_ends_the_process(trials: Trials, change: dict[str, Any]) -> None:
    first = await trials.begin(reuse=True)
    await trials.end()
    trials.stream.send(assign=trials.assign(**change))
    await until(lambda: not psutil.pid_exists(first["pid"]), "the process that waited is gone")


async def test_an_idle_slot_lets_go_and_the_daemon_leaves_nothing(
    trials: Trials, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "IDLE_S", 0.2)
    first = await trials.begin(reuse=True)
    await trials.end()
    await until(lambda: not psutil.pid_exists(first["pid"]), "the process is thrown away")
    second = await trials.begin(reuse=True)
    monkeypatch.setattr(module, "IDLE_S", 60)
    await trials.end()
    assert psutil.pid_exists(second["pid"])
    await trials.site.stop()
    assert not psutil.pid_exists(second["pid"])


async def test_resource_trackers_of_libraries_are_no_leftovers(trials: Trials) -> None:
    trials.write(
        at_the_end(
            """
            from multiprocessing import shared_memory
            block = shared_memory.SharedMemory(create=True, size=10)
            block.close()
            block.unlink()
            """
        )
    )
    first = await trials.begin(reuse=True)
    assert (await trials.end()).left_behind == ""
    assert (await trials.begin(reuse=True))["pid"] == first["pid"]


async def test_a_process_that_waits_is_no_trial_s_by_name_and_runs_its_exit_functions(trials: Trials) -> None:
    trials.write(
        PROGRAM.replace(
            "\ndef train",
            "\nimport atexit\natexit.register(lambda: Path(MARKS, 'exited').touch())\n\ndef train",
        )
    )
    first = await trials.begin(reuse=True)
    await trials.end()
    process = psutil.Process(first["pid"])
    await until(lambda: process.name() == "headrace waits", "its name is no trial's")
    assert "waits for another trial" in " ".join(process.cmdline())
    await trials.site.stop()
    assert (trials.site.marks / "exited").exists()


async def test_after_many_trials_a_process_ends(trials: Trials) -> None:
    trials.write(
        PROGRAM.replace("\ndef train", "\nimport headrace.trial.reused as r\nr.MOST_TRIALS = 3\n\ndef train")
    )
    pids, said = [], []
    for _ in range(4):
        pids.append((await trials.begin(reuse=True))["pid"])
        said.append((await trials.end()).left_behind)
    assert said == ["", "", "it ran 3 trials", ""]
    assert [pid == pids[0] for pid in pids] == [True, True, True, False]
    counts = trials.site.daemons[-1][0].reused()
    assert counts == "2 trials ran in a reused process; processes ended because: it had run many trials (1)"


async def test_trials_that_share_a_slot_take_the_processes_of_those_before_them(trials: Trials) -> None:
    async def begin_two() -> list[dict[str, Any]]:
        assigns = [trials.assign(reuse=True) for _ in range(2)]
        reports = len(trials.stream.all("report"))
        for assign in assigns:
            assign.grant.milli = 500
            trials.stream.send(assign=assign)
        await trials.stream.get("report", reports + 2)
        return [trials.recorded(assign) for assign in assigns]

    async def end_two() -> None:
        exits = len(trials.stream.all("exited"))
        for report in trials.stream.all("report")[-2:]:
            trials.stream.decide(report, event_pb2.DECISION_ACTION_STOP)
        await trials.stream.get("exited", exits + 2)

    before = await begin_two()
    await end_two()
    after = await begin_two()
    assert len({seen["pid"] for seen in before}) == 2
    assert {seen["pid"] for seen in after} == {seen["pid"] for seen in before}
    await end_two()
    assert [exited.left_behind for exited in trials.stream.all("exited")] == [""] * 4
    whole = await trials.begin(reuse=True)  # all of the slot: another launch
    assert whole["pid"] not in {seen["pid"] for seen in before}
    assert not any(psutil.pid_exists(seen["pid"]) for seen in before)
