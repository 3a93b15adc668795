"""Trials through their whole life: real processes under a daemon in this process, and a scripted scheduler."""

import asyncio
import errno
import math
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from scripted_scheduler import ScriptedScheduler, until
from worker_site import Site

from headrace.v1 import event_pb2, worker_pb2
from headrace_worker import process

CONTINUE = event_pb2.DECISION_ACTION_CONTINUE
PAUSE = event_pb2.DECISION_ACTION_PAUSE
STOP = event_pb2.DECISION_ACTION_STOP


async def test_a_trial_reports_waits_at_its_milestone_and_continues(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        for step in range(1, 5):
            decision = report(step, save=True)
            mark(f"answered{step}", decision.action)
            leave_if_told(decision)
        """
    )
    stream.send(assign=site.assign(command, milestone=2))
    second = await stream.get("report", 2)
    assert second.step == 2
    assert second.checkpoint.uri.startswith("file://")
    assert (site.marks / "answered1").exists()
    assert not (site.marks / "answered2").exists()
    stream.decide(second, CONTINUE, next_milestone=4)
    fourth = await stream.get("report", 4)
    assert [r.step for r in stream.all("report")] == [1, 2, 3, 4]
    assert not (site.marks / "answered4").exists()
    stream.decide(fourth, STOP)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_RELEASED
    assert exited.exit_code == 0
    sequences = [m.sequence for m in stream.durable()]
    assert sequences == sorted(set(sequences))


@pytest.mark.full
async def test_a_program_that_fails_behind_the_decision_at_its_last_report_is_reported(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        assert report(9, save=True).action == 3
        raise OSError("saving failed")
        """
    )
    stream.send(assign=site.assign(command, milestone=9))
    stream.decide(await stream.get("report", 1), STOP)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    assert "OSError: saving failed" in exited.error


async def test_a_program_that_ends_by_itself_has_finished(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("print('hello')", prelude=False)))
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FINISHED
    assert exited.log_tail == "hello\n"


@pytest.mark.parametrize(
    ("body", "outcome", "error"),
    [
        (
            "raise ValueError('no good')",
            worker_pb2.EXIT_OUTCOME_FAILED,
            "exit status 1; last output: ValueError: no good",
        ),
        ("import os; os._exit(3)", worker_pb2.EXIT_OUTCOME_FAILED, "exit status 3"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGSEGV)",
            worker_pb2.EXIT_OUTCOME_FAILED,
            "killed by SIGSEGV",
        ),
        ("import os; os.abort()", worker_pb2.EXIT_OUTCOME_FAILED, "killed by SIGABRT"),
        (
            "import os, signal; os.kill(os.getpid(), signal.SIGKILL)",
            worker_pb2.EXIT_OUTCOME_LOST,
            "killed by SIGKILL",
        ),
    ],
)
async def test_how_a_program_dies_decides_who_is_to_blame(
    site: Site,
    scheduler: ScriptedScheduler,
    body: str,
    outcome: worker_pb2.ExitOutcome.ValueType,
    error: str,
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program(body, prelude=False)))
    exited = await stream.get("exited")
    assert exited.outcome == outcome
    assert exited.error == error


@pytest.mark.full
async def test_nan_reaches_the_scheduler(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program("report(3, loss=float('nan')); report(2, loss=float('inf')); report(2, acc=1.0)")
    stream.send(assign=site.assign(command))
    await stream.get("exited")
    first, second, third = stream.all("report")
    assert math.isnan(first.metrics["loss"])
    assert second.step == 2
    assert math.isinf(second.metrics["loss"])
    assert dict(third.metrics) == {"acc": 1.0}


async def test_the_environment_of_a_trial(site: Site, scheduler: ScriptedScheduler) -> None:
    site.fake_gpus, site.cpu_slots = 2, None
    site.start()
    stream = await scheduler.stream()
    assert [d.uuid for d in stream.hello.devices] == ["GPU-fake-w1-0", "GPU-fake-w1-1"]
    command = site.program(
        """
        import os
        gpus, trial = os.environ["CUDA_VISIBLE_DEVICES"], os.environ["HEADRACE_TRIAL"]
        print(gpus, trial, os.getcwd(), os.getpgrp() == os.getpid())
        """,
        prelude=False,
    )
    stream.send(assign=site.assign(command, slots=(0, 1), number=5))
    exited = await stream.get("exited")
    assert exited.log_tail == f"GPU-fake-w1-0,GPU-fake-w1-1 studies/s/trials/5 {site.root} True\n"
    log = (site.root / "home/logs/s/5.log").read_text()
    assert log.startswith("==== ")
    assert stream.hello.log_dir == str(site.root / "home/logs")


@pytest.mark.parametrize(
    ("command", "change", "error"),
    [
        (["/no/such/program"], {}, "program '/no/such/program' cannot be started: No such file or directory"),
        (
            ["true"],
            {"working_dir": "/no/such/dir"},
            "working_dir '/no/such/dir' cannot be entered: No such file",
        ),
        (["/etc/passwd"], {}, "program '/etc/passwd' cannot be started: Permission denied"),
    ],
)
async def test_a_program_that_cannot_be_started_has_failed(
    site: Site, scheduler: ScriptedScheduler, command: list[str], change: dict[str, str], error: str
) -> None:
    site.start()
    stream = await scheduler.stream()
    assign = site.assign(command)
    for name, value in change.items():
        setattr(assign.template, name, value)
    stream.send(assign=assign)
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    assert error in exited.error


@pytest.mark.full
@pytest.mark.parametrize(
    ("number", "outcome"),
    [(errno.EAGAIN, "UNREACHED"), (errno.ENOMEM, "UNREACHED"), (errno.E2BIG, "FAILED")],
)
async def test_a_machine_that_cannot_start_programs_is_charged_to_nobody(
    number: int,
    outcome: str,
    site: Site,
    scheduler: ScriptedScheduler,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    async def refuse(*_: object, **__: object) -> None:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(asyncio, "create_subprocess_exec", refuse)
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(["true"]))
    exited = await stream.get("exited")
    assert worker_pb2.ExitOutcome.Name(exited.outcome) == f"EXIT_OUTCOME_{outcome}"
    assert os.strerror(number) in exited.error


@pytest.mark.full
def test_the_shim_says_which_error_it_was(tmp_path: Path) -> None:
    read_end, write_end = os.pipe()
    environment = os.open(os.devnull, os.O_RDONLY)
    given = (write_end, environment)
    shim = Path(process.__file__).with_name("shim.py")
    arguments = (str(os.getpid()), *map(str, given), "", "", "", str(tmp_path / "none"), "true")
    done = subprocess.run((sys.executable, "-I", "-S", shim, *arguments), pass_fds=given, check=False)
    for descriptor in given:
        os.close(descriptor)
    with os.fdopen(read_end) as said:
        assert said.read().startswith(f"{errno.ENOENT} working_dir ")
    assert done.returncode == 127


async def test_finish_with_an_error_is_the_configurations_failure(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    command = site.program(
        """
        stub.Finish(runtime_pb2.FinishRequest(lease_id=lease, error="ValueError: boom", traceback="Traceback: boom"))
        sys.exit(1)
        """
    )
    stream.send(assign=site.assign(command))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (worker_pb2.EXIT_OUTCOME_FAILED, "ValueError: boom")
    assert "Traceback: boom" in exited.log_tail


async def test_a_resumed_trial_gets_its_checkpoint_back(site: Site, scheduler: ScriptedScheduler) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("leave_if_told(report(3, save=True))"), milestone=3))
    report = await stream.get("report")
    stream.decide(report, PAUSE)
    await stream.get("exited")
    resumed = site.program(
        """
        print(Path(me.restore_dir, "state.json").read_text(), me.assign.resume_step, me.assign.last_step,
              os.listdir(me.restore_dir))
        stub.Restored(runtime_pb2.RestoredRequest(lease_id=lease))
        stub.Restored(runtime_pb2.RestoredRequest(lease_id=lease))
        """
    )
    stream.send(
        assign=site.assign(resumed, attempt=2, checkpoint=report.checkpoint, resume_step=3, last_step=5)
    )
    exited = await stream.get("exited", 2)
    assert exited.log_tail == "{\"step\": 3} 3 5 ['state.json']\n"
    assert len(stream.all("restored")) == 1


async def test_a_corrupted_checkpoint_is_the_machines_failure(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("leave_if_told(report(3, save=True))"), milestone=3))
    report = await stream.get("report")
    stream.decide(report, PAUSE)
    await stream.get("exited")
    (stored,) = (site.root / "store").rglob("state.json")
    stored.write_text('{"step": 4}')
    stream.send(assign=site.assign(["true"], attempt=2, checkpoint=report.checkpoint))
    exited = await stream.get("exited", 2)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT
    assert "state.json has SHA-256" in exited.error
    assert list(exited.stored) == [report.checkpoint.uri], "complete, by the store's own listing"


@pytest.mark.full
async def test_a_checkpoint_that_the_trial_library_cannot_read_is_not_the_programs_failure(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    """The bytes are what was stored, but what was stored is no checkpoint."""
    site.start()
    stream = await scheduler.stream()
    first = site.program(
        """
        folder = Path(me.checkpoint_dir, "1")
        folder.mkdir(parents=True)
        (folder / "rank-0.json").write_text('{"format": 2, "world_size"')
        request = runtime_pb2.ReportRequest(
            lease_id=lease, sequence=1, step=3, metrics={"loss": 1.0}, checkpoint_dir=str(folder))
        leave_if_told(stub.Report(request, timeout=60).decision)
        """
    )
    stream.send(assign=site.assign(first, milestone=3))
    report = await stream.get("report")
    stream.decide(report, PAUSE)
    await stream.get("exited")
    script = site.program("from headrace import trial\nt = trial.current()", prelude=False)
    stream.send(assign=site.assign(script, attempt=2, checkpoint=report.checkpoint))
    exited = await stream.get("exited", 2)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_UNREADABLE_CHECKPOINT
    assert "the checkpoint cannot be read" in exited.error


@pytest.mark.full
async def test_what_a_programs_own_object_makes_of_its_state_is_the_programs_failure(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = """
        from headrace import trial
        class Own:
            def state_dict(self):
                return {"a": 1}
            def load_state_dict(self, state):
                raise KeyError("b")
        t = trial.current()
        t.track(own=Own())
        for step in t.steps():
            t.report(loss=1.0)
        """
    stream.send(assign=site.assign(site.program(body, prelude=False), milestone=3))
    report = await stream.get("report", 3)
    stream.decide(report, PAUSE)
    await stream.get("exited")
    stream.send(
        assign=site.assign(site.program(body, prelude=False), attempt=2, checkpoint=report.checkpoint)
    )
    exited = await stream.get("exited", 2)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    assert exited.error == "KeyError: 'b'"


@pytest.mark.full
async def test_a_checkpoint_that_was_deleted_is_reported_as_that_and_a_store_that_is_gone_is_not(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("leave_if_told(report(3, save=True))"), milestone=3))
    report = await stream.get("report")
    stream.decide(report, PAUSE)
    await stream.get("exited")
    store = site.root / "store"
    store.rename(site.root / "away")
    stream.send(assign=site.assign(["true"], attempt=2, checkpoint=report.checkpoint))
    exited = await stream.get("exited", 2)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_STORE_AWAY
    store.mkdir()
    stream.send(assign=site.assign(["true"], attempt=3, checkpoint=report.checkpoint))
    exited = await stream.get("exited", 3)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_STORE_AWAY, "a mount point without its file system"
    assert "its marker .headrace-store is not there" in exited.error
    store.rmdir()
    (site.root / "away").rename(store)
    shutil.rmtree(store / "studies")
    stream.send(assign=site.assign(["true"], attempt=4, checkpoint=report.checkpoint))
    exited = await stream.get("exited", 4)
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_NO_CHECKPOINT
    assert exited.error == f"checkpoint {report.checkpoint.uri} is not there: no manifest.json"


async def test_a_slot_takes_its_next_trial_when_the_old_group_is_gone(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    first = site.program(
        """
        if os.fork() == 0:  # a child that outlives its parent
            signal.signal(signal.SIGTERM, signal.SIG_IGN)
            mark("child", os.getpid())
            time.sleep(100)
        while not Path(os.environ["MARKS"], "child").exists():
            time.sleep(0.01)
        leave_if_told(report(1))
        """
    )
    second = site.program(
        """
        child = int(Path(os.environ["MARKS"], "child").read_text())
        try:
            state = Path(f"/proc/{child}/stat").read_text().rpartition(")")[2].split()[0]
        except FileNotFoundError:
            state = "gone"
        print(state)
        """
    )
    stream.send(assign=site.assign(first, milestone=1))
    report = await stream.get("report")
    stream.decide(report, STOP)
    stream.send(assign=site.assign(second, number=1))
    exited = await stream.get("exited", 2)
    assert exited.lease.trial == "studies/s/trials/1"
    assert exited.log_tail.strip() in {"gone", "Z"}


async def test_a_clean_stop_reports_leases_lost_and_leaves_nothing_behind(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    daemon = site.start()
    stream = await scheduler.stream()
    stream.send(assign=site.assign(site.program("mark('up', os.getpid()); time.sleep(100)")))
    await until(lambda: (site.marks / "up").exists())
    daemon.stop()
    last = await scheduler.stream(2)
    assert not last.hello.devices, "the last session offers nothing"
    exited = await last.get("exited")
    assert (exited.outcome, exited.error) == (worker_pb2.EXIT_OUTCOME_LOST, "the worker was stopped")
    await site.daemons[0][1]
    site.daemons.clear()


@pytest.mark.full
@pytest.mark.parametrize(
    ("ends", "outcome", "error"),
    [
        ("sys.exit(0)", worker_pb2.EXIT_OUTCOME_FINISHED, ""),
        ("sys.exit(1)", worker_pb2.EXIT_OUTCOME_FAILED, "exit status 1; last output: training failed"),
        (
            "sys.exit('the data is corrupt')",
            worker_pb2.EXIT_OUTCOME_FAILED,
            "exit status 1; last output: the data is corrupt",
        ),
        (
            "raise SystemExit(3)",
            worker_pb2.EXIT_OUTCOME_FAILED,
            "exit status 3; last output: training failed",
        ),
        ("sys.exit(75)", worker_pb2.EXIT_OUTCOME_LOST, "could not reach its worker (exit status 75)"),
    ],
)
async def test_a_script_of_its_own_that_exits_with_an_error_has_failed(
    site: Site, scheduler: ScriptedScheduler, ends: str, outcome: int, error: str
) -> None:
    """Its end is reported while the interpreter exits, when the exit status is not known yet."""
    site.start()
    stream = await scheduler.stream()
    body = f"""
        import sys
        from headrace import trial
        t = trial.current()
        t.state["w"] = 1.0
        for step in t.steps():
            t.report(loss=1.0)
            if step == 2:
                print("training failed")
                {ends}
        """
    stream.send(assign=site.assign(site.program(body, prelude=False), milestone=9))
    exited = await stream.get("exited")
    assert exited.outcome == outcome
    assert error in exited.error
    assert exited.by_itself == (outcome == worker_pb2.EXIT_OUTCOME_FINISHED)
    assert exited.HasField("checkpoint") == (outcome == worker_pb2.EXIT_OUTCOME_FINISHED)


@pytest.mark.full
async def test_a_later_process_of_the_same_attempt_counts_its_reports_from_1_again(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    """For example a script that starts its training again, or evaluates after it. Such reports were once taken for
    repeats: they were answered and dropped."""
    site.start()
    stream = await scheduler.stream()
    body = """
        import subprocess, sys
        from headrace import trial
        t = trial.current()
        first = "again" not in sys.argv
        for step in ((1, 2, 3) if first else (4, 5)):
            t.report(loss=float(step), step=step)
        if first:
            t.report(loss=3.0, step=3)
            subprocess.run([sys.executable, sys.argv[0], "again"], check=True)
        """
    stream.send(assign=site.assign(site.program(body, prelude=False), milestone=9))
    reports = [await stream.get("report", n) for n in range(1, 7)]
    assert [(one.step, one.metrics["loss"]) for one in reports] == [
        (1, 1.0),
        (2, 2.0),
        (3, 3.0),
        (3, 3.0),
        (4, 4.0),
        (5, 5.0),
    ]
    assert (await stream.get("exited")).outcome == worker_pb2.EXIT_OUTCOME_FINISHED


@pytest.mark.full
async def test_a_later_process_may_report_behind_a_rung_that_an_earlier_one_has_reported(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = """
        import subprocess, sys
        from headrace import trial
        t = trial.current()
        t.state["kept"] = 1
        first = "again" not in sys.argv
        for step in ((1, 2, 3) if first else (4, 5)):
            t.report(loss=float(step), step=step)
        if first:
            subprocess.run([sys.executable, sys.argv[0], "again"], check=True)
        """
    command = site.program(body, prelude=False)
    stream.send(assign=site.assign(command, milestone=2, rungs=[2, 9]))
    report = await stream.get("report", 2)
    stream.decide(report, CONTINUE, next_milestone=9)
    assert [(await stream.get("report", n)).step for n in (3, 4, 5)] == [3, 4, 5]
    assert (await stream.get("exited")).outcome == worker_pb2.EXIT_OUTCOME_FINISHED


@pytest.mark.full
async def test_processes_that_report_other_values_of_one_step_at_once_are_refused(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = """
        import subprocess, sys
        from headrace import trial
        t = trial.current()
        other = "other" in sys.argv
        if not other:
            subprocess.run([sys.executable, sys.argv[0], "other"], check=True)
        t.report(loss=0.5 if other else 0.25, step=1)
        """
    stream.send(assign=site.assign(site.program(body, prelude=False), milestone=9))
    assert (await stream.get("report")).metrics["loss"] == 0.5
    exited = await stream.get("exited")
    assert exited.outcome == worker_pb2.EXIT_OUTCOME_FAILED
    assert "step 1 was already reported with different values: several processes report" in exited.error


@pytest.mark.full
@pytest.mark.parametrize(
    ("line", "dies", "outcome"),
    [
        (
            "{python} {script}; echo done",
            "os.kill(os.getpid(), signal.SIGKILL)",
            worker_pb2.EXIT_OUTCOME_LOST,
        ),
        ("{python} {script}; echo done", "pass", worker_pb2.EXIT_OUTCOME_FINISHED),
        (
            "set -e; {python} {script}; echo done",
            "os.kill(os.getpid(), signal.SIGKILL)",
            worker_pb2.EXIT_OUTCOME_LOST,
        ),
        ("exec {python} {script}", "os.kill(os.getpid(), signal.SIGKILL)", worker_pb2.EXIT_OUTCOME_LOST),
        ("exec {python} {script}", "os._exit(0)", worker_pb2.EXIT_OUTCOME_FINISHED),
    ],
)
async def test_a_training_that_is_killed_behind_a_shell_is_lost(
    site: Site, scheduler: ScriptedScheduler, line: str, dies: str, outcome: int
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = f"""
        import os, signal
        from headrace import trial
        t = trial.current()
        t.report(loss=1.0)
        {dies}
        """
    python, script = site.program(body, prelude=False)
    command = ["sh", "-c", line.format(python=python, script=script)]
    stream.send(assign=site.assign(command, milestone=9))
    assert (await stream.get("report")).step == 1
    exited = await stream.get("exited")
    assert exited.outcome == outcome, exited.error


@pytest.mark.full
@pytest.mark.parametrize(
    ("dies", "unconnected"), [("os.kill(os.getpid(), signal.SIGKILL)", True), ("pass", False)]
)
async def test_a_training_that_is_killed_behind_a_shell_before_it_connects_is_told_as_such(
    site: Site, scheduler: ScriptedScheduler, dies: str, unconnected: bool
) -> None:
    site.start()
    stream = await scheduler.stream()
    body = f"""
        import os, signal
        {dies}
        from headrace import trial
        trial.current()
        """
    python, script = site.program(body, prelude=False)
    stream.send(assign=site.assign(["sh", "-c", f"{python} {script}; echo done"], attempt=2))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.unconnected) == (worker_pb2.EXIT_OUTCOME_FINISHED, unconnected)
