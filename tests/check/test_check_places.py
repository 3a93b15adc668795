"""`headrace check` restores where the study pauses, and while a variable contains what a restore may lose."""

import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckReport, Kind, render, run_check
from headrace.check.phases import Phases
from headrace.check.plan import RESTORES, planned, saved_at
from headrace.check.report import Verdict
from headrace.check.snapshot import Phase

Check = Callable[..., CheckReport]

SWEEP = """
from headrace import trial

class M:
    def __init__(self):
        self.w = 3.0
        self.seen = None
    def step(self, lr):
        self.w -= lr * 2 * self.w
    def state_dict(self):
        return {"w": self.w}
    def load_state_dict(self, state):
        self.w = state["w"]

SWEEP = {7: 0.3, 8: 0.1, 9: 0.03, 10: 0.01}

def train(t):
    m = M()
    t.track(m=m)
    t.state.setdefault("lr", t.params["lr"])
    drops = {}
    for e in t.steps():
        before = m.w
        lr = SWEEP.get(e, t.state["lr"])
        m.step(lr)
        if e in SWEEP:
            drops[lr] = before - m.w
        if e == 10:
            t.state["lr"] = max(drops, key=drops.get)
            drops.clear()
        t.report(w=m.w, lr=lr)

if __name__ == "__main__":
    trial.main(train, defaults={"lr": 0.02}, steps=40)
"""
"""A range test in steps 7 to 10: a pause after 7, 8 or 9 loses its results, and no other pause does."""
KEPT = "{0} = t.state.get("
LATER = [
    ("SWEEP = {7: 0.3, 8: 0.1, 9: 0.03, 10: 0.01}", "SWEEP = {24: 0.3, 25: 0.1, 26: 0.01}"),
    ("e == 10", "e == 26"),
]
MUTANTS = {
    "a dictionary": ([], "drops", (7, 9)),
    "a dictionary that is replaced": ([("drops.clear()", "drops = {}")], "drops", (7, 9)),
    "none before the loop": (
        [
            ("drops = {}\n    for", "drops = None\n    for"),
            ("before = m.w", "before = m.w; drops = drops or {}"),
        ],
        "drops",
        (7, 9),
    ),
    "an attribute that state_dict() leaves out": (
        [
            ("drops = {}", "m.seen = {}"),
            ("drops[lr]", "m.seen[lr]"),
            ("max(drops, key=drops.get)", "max(m.seen, key=m.seen.get)"),
            ("drops.clear", "m.seen.clear"),
        ],
        "m.seen",
        (7, 9),
    ),
    "a global": ([("    drops = {}\n", ""), ("SWEEP = {7", "drops = {}\nSWEEP = {7")], "drops", (7, 9)),
    "late": (LATER, "drops", (24, 25)),
}


def kinds(report: CheckReport) -> list[tuple[Kind, str]]:
    return [(missing.kind, missing.remedy) for missing in report.missing]


@pytest.mark.cases(2)
@pytest.mark.parametrize("mutant", MUTANTS)
def test_what_lives_in_a_few_steps_gets_a_restore_there_and_only_it_is_named(
    check: Check, mutant: str
) -> None:
    changes, name, (since, until) = MUTANTS[mutant]
    report = check(*changes, source=SWEEP, steps=None)
    assert report.verdict is Verdict.FAILED, render(report)
    (missing,) = report.missing
    assert missing.kind is Kind.VALUE
    assert KEPT.format(name) in missing.remedy
    assert any(since <= step <= until for step in report.restored_after)
    assert report.restores <= RESTORES, "about as many as before"


SAVED = (("drops = {}", "drops = t.state.setdefault('drops', {})"),)


def test_the_same_in_saved_state_passes_with_the_places_and_the_configuration(check: Check) -> None:
    report = check(*SAVED, source=SWEEP, steps=None)
    assert report.verdict is Verdict.PASSED, render(report)
    said = render(report)
    restored = ", ".join(map(str, report.restored_after))
    assert said.startswith(f"PASSED  script.py: a pause after steps {restored} changes nothing\n")
    assert "one configuration was tried, lr=0.02: another may take another way through the script" in said


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("changes", "lost"),
    [
        ([], ["drops"]),
        ([('return {"w": self.w}', 'return {"w": self.w, "x": 1}')], ["drops"]),
        ([("before = m.w\n", "before = m.w; m.seen = (m.seen or 0) + 1\n")], ["drops", "m.seen"]),
        ([("for e in", "rate = t.state['lr']\n    for e in"), ('"] = max', '"] = rate = max')], ["drops"]),
    ],
    ids=["tracked", "tracked with more", "an attribute beside it", "read from saved state"],
)
def test_what_is_tracked_or_follows_from_another_loss_is_not_named(
    check: Check, changes: list[tuple[str, str]], lost: list[str]
) -> None:
    """After the loss at step 7 everything computed from it differs from the straight run."""
    report = check(*changes, source=SWEEP, steps=12)
    named = [*report.missing, *report.warnings]
    remedies = sorted(missing.remedy for missing in named)
    for remedy, name in zip(remedies, lost, strict=True):
        assert KEPT.format(name) in remedy


def late_check(tmp_path: Path, *, rungs: tuple[int, ...], pauses: bool) -> CheckReport:
    """A check of the correct script whose time is over with the first process of its resumed run."""
    now, started = 0.0, 0

    def launch(control_file: Path, log_file: Path, ranks: int) -> None:
        nonlocal now, started
        launch_segment(control_file, log_file, ranks)
        now, started = now + (5.0 if not started else 60.0), started + 1

    source = SWEEP
    for old, new in SAVED:
        source = source.replace(old, new)
    file = tmp_path / "script.py"
    file.write_text(source)
    return run_check(file, launch=launch, clock=lambda: now, rungs=rungs, pauses=pauses)


def test_the_pauses_of_a_study_are_tried_however_late_it_is(tmp_path: Path) -> None:
    report = late_check(tmp_path, rungs=(8,), pauses=True)
    assert report.restored_after == (1, 8, 38, 39)
    assert report.verdict is Verdict.PASSED_IN_PART, render(report)


def test_a_late_check_without_all_pauses_of_a_study_is_undecided(tmp_path: Path) -> None:
    report = late_check(tmp_path, rungs=tuple(range(1, 40)), pauses=True)
    assert report.verdict is Verdict.UNDECIDED
    assert not report.passed
    said = render(report)
    assert "changes nothing, and there was no time for all pauses that matter\n" in said
    assert f"NOT COVERED: pauses after steps {report.not_restored_after[0]}, " in said


def test_pauses_behind_the_steps_that_were_asked_for_are_named(check: Check) -> None:
    report = check(*SAVED, source=SWEEP, steps=3, rungs=(1, 8), pauses=True)
    assert report.verdict is Verdict.PASSED_IN_PART
    assert report.passed, "that is what --steps asks for"
    said = "NOT COVERED: the steps after step 3 of 40, where the study pauses after step 8, as --steps says"
    assert said in render(report)
    assert check(*SAVED, source=SWEEP, steps=3, rungs=(1, 8)).verdict is Verdict.PASSED


def test_where_the_script_saves_on_its_way_it_is_restored(check: Check) -> None:
    report = check(*SAVED, ("t.steps()", "t.steps(checkpoint_every=7)"), source=SWEEP, steps=None)
    assert {7, 14, 21, 28, 35} <= set(report.restored_after)


STUDY = """
name: sweep
objective: {metric: w, goal: minimize}
trial: {callable: "script:train"}
space: {lr: {type: float, low: 0.01, high: 0.3}}
policy: {kind: asha, rungs: [13, 40]}
trials: 4
"""


@pytest.mark.full
def test_the_rungs_of_a_study_file_are_tried(tmp_path: Path) -> None:
    """In real processes: this is what users type."""
    source = SWEEP
    for old, new in SAVED:
        source = source.replace(old, new)
    (tmp_path / "script.py").write_text(source)
    (tmp_path / "study.yaml").write_text(STUDY)
    done = subprocess.run(
        [sys.executable, "-m", "headrace.cli", "check", "study.yaml", "--time-limit", "600", "--json"],
        cwd=tmp_path,
        env=dict(os.environ),
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, done.stderr
    told = json.loads(done.stdout)
    assert 13 in told["restored_after"]
    assert told["pauses"] == [13]
    assert told["params"].keys() == {"lr"}


def seen(values: dict[int, object], *, fresh: object, last: int) -> list[tuple[int, int, bool]]:
    """The phases of one variable that has these values from these steps on."""
    phases = Phases()
    phases.begin({} if fresh is None else {"x": fresh})
    now = fresh
    for step in range(1, last + 1):
        now = values.get(step, now)
        phases.saw(step, {} if now is None else {"x": now})
    return [(phase.first, phase.last, phase.changes) for phase in phases.found()]


def test_the_phases_of_a_variable() -> None:
    assert seen({}, fresh=0, last=9) == []
    assert seen({7: 1, 8: 2, 9: 3, 10: 0}, fresh=0, last=40) == [(7, 9, True)]
    assert seen({8: 1, 9: 0}, fresh=0, last=40) == [(8, 8, True)], "in one step alone"
    assert seen({3: 1}, fresh=0, last=9) == [(3, 9, False)], "set once"
    assert seen(dict(enumerate(range(10))), fresh=0, last=9) == [(1, 9, True)], "a counter"
    assert seen({1: 1, 7: 2, 8: 3, 9: 1}, fresh=0, last=20) == [(7, 8, True), (9, 20, False), (1, 6, False)]
    assert seen({4: 1, 6: 2}, fresh=None, last=9) == [(6, 9, False), (4, 5, False)], "first set in the loop"


def test_one_of_several_variables_with_equal_lives_represents_all() -> None:
    phases = Phases()
    phases.begin({"a": 0, "b": 0, "c": 0})
    for step in range(1, 10):
        phases.saw(step, {"a": step, "b": -step, "c": 0})
    assert phases.found() == (Phase(variable="a", first=1, last=9, changes=True),)


def phase(name: str, first: int, last: int) -> Phase:
    return Phase(variable=name, first=first, last=last, changes=True)


def test_each_variable_gets_a_restore_in_its_first_phase_and_the_rest_a_sample() -> None:
    steps = range(1, 41)
    lives = [phase("a", 7, 9), phase("b", 8, 12), phase("c", 1, 40), phase("a", 20, 20), phase("b", 30, 31)]
    plan = planned(steps, ends_by_itself=False, phases=lives)
    assert plan.pointed_at == {9}, "which lies in the first phases of a and b"
    assert {9, 20, 31} <= set(plan.order)
    assert len(plan.order) == RESTORES
    assert plan.always == {1, 38, 39}
    many = [phase(f"v{step}", step, step) for step in range(5, 25)]
    assert set(range(5, 25)) <= set(planned(steps, ends_by_itself=False, phases=many).order)
    assert planned(steps, ends_by_itself=False, phases=[phase("a", 40, 40)]).pointed_at == set()


def test_pauses_come_first_and_are_spread_where_they_are_many() -> None:
    steps = range(2, 82, 2)
    plan = planned(steps, ends_by_itself=False, pauses=(7, 8, 27), saves=(50,))
    assert plan.always == {2, 76, 78, 8, 28}, "at the first report of the rung, or behind it"
    assert plan.pointed_at == {8, 28}
    assert 50 in plan.order
    each = planned(range(1, 101), ends_by_itself=False, pauses=range(1, 100))
    assert each.pointed_at == set(each.order) == set(range(1, 100))
    assert RESTORES <= len(each.always) <= RESTORES + 3
    assert len(each.first(0)) == len(each.always)


def test_where_a_script_saves() -> None:
    assert saved_at(range(1, 21), 6, ()) == (6, 12, 18)
    assert saved_at(range(1, 21), 6, (8,)) == (6, 8, 14, 20)
    assert saved_at(range(3, 21, 3), 4, ()) == (6, 12, 18)
    assert saved_at(range(1, 21), None, (8, 30)) == (8,)
    often = planned(range(1, 101), ends_by_itself=False, saves=range(1, 101))
    assert len(often.order) == RESTORES


PATIENCE = """
def train(t):
    t.state["w"] = 1.0
    best, bad = float("inf"), 0
    for step in t.steps():
        loss = 1.0 / step if step < 4 else 1.0
        best, bad = (loss, 0) if loss < best else (best, bad + 1)
        t.report(loss=loss)
        if bad >= 3:
            return
"""


def test_a_function_without_a_budget_is_undecided_however_well_its_first_steps_go(check: Check) -> None:
    found = check(source=PATIENCE, callable="train", steps=None)
    assert (found.verdict, found.last_step) == (Verdict.UNDECIDED, 3)
    assert "NOT COVERED: the steps after step 3, as the script names no budget: say --steps N" in render(
        found
    )
    assert check(source=PATIENCE, callable="train", steps=8).verdict is Verdict.FAILED
    assert check(source=PATIENCE, callable="train", steps=None, max_steps=12).verdict is Verdict.FAILED
