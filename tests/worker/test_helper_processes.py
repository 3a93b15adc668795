"""Several processes of one trial report how they ended: which report counts, and that no helper's end is the
trial's."""

import pytest
from scripted_scheduler import ScriptedScheduler
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker import speakers
from headrace_worker.exits import Finished
from headrace_worker.last_words import Heard, LastWords

FINISHED = worker_pb2.EXIT_OUTCOME_FINISHED
TRAIN = """
import sys, time
from headrace import trial
t = trial.current()
for step in (1, 2, 3):
    time.sleep(0.5)  # the grace of a helper that counted would be over
    t.report(loss=float(step))
"""
ASKS = "from headrace import trial\nprint(trial.current().params)"
RAISES = ASKS + "\nraise MemoryError('too large')"
FORKS = """
import os, time
from headrace import trial
t = trial.current()
if not (child := os.fork()):
    raise MemoryError("too large")
os.waitpid(child, 0)
for step in (1, 2, 3):
    t.report(loss=float(step))
"""
SLOW = """
import os, pathlib, time
from headrace import trial
t = trial.current()
time.sleep(6)  # four times the limit
pathlib.Path(os.environ["MARKS"], "done").touch()
"""
HELPED = (
    """
import subprocess, sys
subprocess.run([sys.executable, {other!r}])
"""
    + TRAIN
)
SPAWNS = """
import multiprocessing, time
from headrace import trial
t = trial.current()
if __name__ == "__main__":
    with multiprocessing.get_context("spawn").Pool(1) as pool:
        pool.map(abs, [1])
        pool.close()
        pool.join()
    for step in (1, 2, 3):
        time.sleep(0.5)  # as above
        t.report(loss=float(step))
"""


@pytest.mark.parametrize(
    ("other", "line"),
    [
        (ASKS, "{python} {other} && {python} {train}"),
        (ASKS, "{python} {helped}"),
        pytest.param(RAISES, "{python} {other}; {python} {train}", marks=pytest.mark.full),
        pytest.param(RAISES, "{python} {helped}", marks=pytest.mark.full),
        pytest.param(SPAWNS, "{python} {other}", marks=pytest.mark.full),
        pytest.param(SPAWNS, "{python} {other}; true", marks=pytest.mark.full),
        (FORKS, "{python} {other}"),
    ],
)
async def test_the_end_of_a_helper_is_not_the_trials(
    site: Site, scheduler: ScriptedScheduler, other: str, line: str
) -> None:
    site.start()
    stream = await scheduler.stream()
    python, train = site.program(TRAIN, prelude=False)
    found = {"python": python, "train": train, "other": site.program(other, prelude=False)[1]}
    found["helped"] = site.program(HELPED.format(other=found["other"]), prelude=False)[1]
    stream.send(assign=site.assign(["sh", "-c", line.format(**found)], milestone=9, grace_s=0.1))
    assert [(await stream.get("report", n)).step for n in (1, 2, 3)] == [1, 2, 3]
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (FINISHED, "")


@pytest.mark.full
async def test_what_a_command_does_after_its_training_is_not_cut_short(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    python, train = site.program(TRAIN, prelude=False)
    line = f"{python} {train} && sleep 1 && touch {site.marks}/uploaded"
    stream.send(assign=site.assign(["sh", "-c", line], milestone=9, grace_s=0.1))
    exited = await stream.get("exited")
    assert exited.outcome == FINISHED
    assert (site.marks / "uploaded").exists()


@pytest.mark.full
@pytest.mark.parametrize("more", ["", " & {python} {slow}"])
async def test_a_command_that_hangs_after_its_training_is_ended(
    site: Site, scheduler: ScriptedScheduler, monkeypatch: pytest.MonkeyPatch, more: str
) -> None:
    """It is not ended while another process of the training is at work."""
    monkeypatch.setattr(speakers, "AFTER_STAGE_S", 1.5)
    site.start()
    stream = await scheduler.stream()
    python, train = site.program(TRAIN, prelude=False)
    slow = site.program(SLOW, prelude=False)[1]
    line = f"{python} {train}{more.format(python=python, slow=slow)}; sleep 100"
    stream.send(assign=site.assign(["sh", "-c", line], milestone=9, grace_s=0.1))
    exited = await stream.get("exited")
    assert exited.outcome == FINISHED, exited.error
    assert (site.marks / "done").exists() == bool(more)


@pytest.mark.full
async def test_a_training_that_raises_behind_a_shell_has_failed(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    site.start()
    stream = await scheduler.stream()
    python, script = site.program(TRAIN + "raise ValueError('by itself')", prelude=False)
    stream.send(assign=site.assign(["sh", "-c", f"{python} {script}; {python} -c pass"], milestone=9))
    exited = await stream.get("exited")
    assert (exited.outcome, exited.error) == (worker_pb2.EXIT_OUTCOME_FAILED, "ValueError: by itself")


SHELL, MAIN, HELPER = 1, 2, 3


def test_the_leader_speaks_for_its_program() -> None:
    words = LastWords(is_gang=False)
    words.asks(MAIN, MAIN, promises=True)
    words.asks(HELPER, MAIN, promises=True)
    assert words.says(HELPER, MAIN, Finished(error="no")) is Heard.ASIDE
    assert not words.over
    assert words.counted is None
    assert not words.missing
    assert words.says(MAIN, MAIN, Finished(by_itself=True)) is Heard.END
    assert words.over
    assert words.counted == Finished(by_itself=True)


def test_what_a_child_trained_and_saved_counts_with_its_parents_word() -> None:
    words = LastWords(is_gang=False)
    words.asks(MAIN, MAIN, promises=True)
    words.asks(HELPER, MAIN, promises=True)
    words.reports(HELPER, MAIN)
    assert words.says(HELPER, MAIN, Finished(unsaved="no room", by_itself=True)) is Heard.ASIDE
    words.says(MAIN, MAIN, Finished())
    assert words.counted == Finished(unsaved="no room", by_itself=True)


def test_behind_a_shell_the_process_that_reported_last_speaks() -> None:
    words = LastWords(is_gang=False)
    words.asks(MAIN, SHELL, promises=True)
    words.reports(MAIN, SHELL)
    assert words.missing
    assert words.says(MAIN, SHELL, Finished(by_itself=True)) is Heard.STAGE
    words.asks(HELPER, SHELL, promises=True)
    assert words.says(HELPER, SHELL, Finished()) is Heard.ASIDE
    assert words.counted == Finished(by_itself=True)
    assert not words.missing


def test_behind_a_shell_without_a_report_the_process_that_asked_last_speaks() -> None:
    words = LastWords(is_gang=False)
    words.asks(HELPER, SHELL, promises=True)
    assert words.says(HELPER, SHELL, Finished()) is Heard.ASIDE
    words.asks(MAIN, SHELL, promises=True)
    assert words.missing
    assert words.works(lambda pid: pid == MAIN)
    assert words.says(MAIN, SHELL, Finished(error="no")) is Heard.STAGE
    assert words.counted == Finished(error="no")
    assert not words.works(lambda _: True)


@pytest.mark.parametrize("reported", [True, False])
def test_one_of_the_ranks_behind_a_launcher_says_the_cause(reported: bool) -> None:
    words = LastWords(is_gang=False)
    for rank in (HELPER, MAIN):
        words.asks(rank, SHELL, promises=True)
        if reported:
            words.reports(rank, SHELL)
    words.says(HELPER, SHELL, Finished(error="no memory"))
    assert words.counted is None
    assert words.missing, "with exit status 0 it was killed"
    words.exits(1)
    assert words.counted == Finished(error="no memory")


def test_a_leader_that_promises_no_word_speaks_for_its_program_too() -> None:
    words = LastWords(is_gang=False)
    words.asks(MAIN, MAIN, promises=False)
    words.asks(HELPER, MAIN, promises=True)
    words.reports(HELPER, MAIN)
    assert words.says(HELPER, MAIN, Finished()) is Heard.ASIDE
    assert words.counted is None, "its exit status says it"


def test_a_number_that_the_system_gives_again_has_not_spoken() -> None:
    words = LastWords(is_gang=False)
    words.asks(MAIN, SHELL, promises=True)
    words.says(MAIN, SHELL, Finished())
    words.asks(MAIN, SHELL, promises=True)
    assert words.missing


def test_a_gangs_leader_tells_how_a_rank_ended() -> None:
    words = LastWords(is_gang=True)
    words.asks(MAIN, SHELL, promises=True)
    words.reports(MAIN, SHELL)
    words.asks(HELPER, SHELL, promises=True)
    assert words.says(HELPER, SHELL, Finished(error="handled by its rank")) is Heard.ASIDE
    assert not words.missing
    assert words.counted is None
    assert words.says(SHELL, SHELL, Finished(rank=1, exit_code=3)) is Heard.END
    assert words.counted == Finished(rank=1, exit_code=3)


def test_of_a_gang_that_ended_well_the_rank_that_reported_speaks() -> None:
    words = LastWords(is_gang=True)
    words.asks(MAIN, SHELL, promises=True)
    words.reports(MAIN, SHELL)
    words.says(HELPER, SHELL, Finished())
    assert words.says(MAIN, SHELL, Finished(by_itself=True)) is Heard.END
    assert words.counted == Finished(by_itself=True)
