"""`headrace check` compares where and how a script ends: early stopping that a pause changes is found and named."""

from collections.abc import Callable, Sequence
from pathlib import Path

import pytest
from forked import launch_segment

from headrace.check import CheckError, CheckReport, Kind, render, run_check
from headrace.check.launch import OutOfTimeError
from headrace.check.plan import RESTORES, affordable, limit_for_all, planned
from headrace.check.report import Verdict
from headrace.check.segment import Segment
from headrace.check.snapshot import LEAST, Control, End
from headrace.trial.runtime import Action, Report
from headrace.trial.script import Defaults

Check = Callable[..., CheckReport]

EARLY = """
from headrace import trial

def train(t):
    t.state.setdefault("sum", 0.0)
    BEFORE
    for step in t.steps():
        FIRST
        loss = abs(step - 2) + 1
        t.state["sum"] += loss
        COUNT
        t.report(loss=loss, sum=t.state["sum"])
        AFTER

trial.main(train, steps=12)
"""
"""The best loss is that of step 2, so a patience of 3 ends at step 5."""
IN_VARIABLES = ("best, bad = float('inf'), 0", "bad = 0 if loss < best else bad + 1; best = min(best, loss)")
IN_STATE = (
    "t.state.setdefault('best', float('inf')); t.state.setdefault('bad', 0)",
    "t.state['bad'] = (t.state['bad'] + 1) * (loss >= t.state['best']); t.state['best'] = min(t.state['best'], loss)",
)
DECIDE_FIRST = "if t.state['bad'] >= 3: break"


def script(before: str = "pass", count: str = "pass", *, first: str = "pass", after: str = "pass") -> str:
    named = {"BEFORE": before, "COUNT": count, "FIRST": first, "AFTER": after}
    source = EARLY
    for name, text in named.items():
        source = source.replace(name, text)
    return source


def found(report: CheckReport) -> list[tuple[Kind, str]]:
    return [(missing.kind, missing.finding) for missing in report.missing]


def test_early_stopping_in_plain_variables_fails_with_the_ends_and_the_variables(check: Check) -> None:
    report = check(source=script(*IN_VARIABLES, after="if bad >= 3: return"), steps=None)
    assert not report.passed
    assert report.steps == 5, "steps are counted as they happened"
    assert report.end_difference is not None
    assert report.end_difference.straight == "ends by itself after step 5"
    assert report.end_difference.other == "ends by itself after step 9"
    assert {missing.kind for missing in report.missing} == {Kind.VALUE, Kind.END}
    remedies = [missing.remedy for missing in report.missing]
    assert any('best = t.state.get("best", best)' in remedy for remedy in remedies), "inf is no constant"
    assert any('bad = t.state.get("bad", 0)' in remedy for remedy in remedies)
    said = render(report)
    assert (
        "the end: the straight run ends by itself after step 5, the resumed ends by itself after step 9"
        in said
    )
    assert '`if t.state.get("stop"): break` as the first' not in said, "it returns, so the remedy returns too"
    assert '`if t.state.get("stop"): return` as the first line of the loop' in said
    assert '`t.state["stop"] = bad >= 3` before each report' in said
    assert "a pause loses 2 pieces of state, and moves the script's end" in said


def test_a_decision_behind_the_report_is_lost_with_a_process_that_ends_there(check: Check) -> None:
    report = check(source=script(*IN_STATE, after="if t.state['bad'] >= 3: return"), steps=None)
    assert found(report) == [
        (
            Kind.END,
            "the script ends by itself after step 5, and a trial that is resumed from that report trains on",
        )
    ]
    assert '`if t.state.get("stop"): return` as the first line of the loop' in report.missing[0].remedy
    assert """`t.state["stop"] = t.state['bad'] >= 3` before each report""" in report.missing[0].remedy
    assert ": a pause moves the script's end\n" in render(report)


def test_a_decision_before_the_step_from_saved_state_passes(check: Check) -> None:
    report = check(source=script(*IN_STATE, first=DECIDE_FIRST), steps=None)
    assert report.passed, render(report)
    assert (report.steps, report.restores, report.end, report.limit) == (5, 5, End.RETURNED, None)
    said = render(report)
    assert "5 steps straight, and again with 5 restores" in said
    assert "both runs end by themselves after step 5 of 12" in said


PLAIN = """
from headrace import trial

def train(t):
    t.state.setdefault("sum", 0.0)
    best, bad = float("inf"), 0
    for step in t.steps():
        loss = abs(step - 2) + 1
        t.state["sum"] += loss
        BEFORE_REPORT
        t.report(loss=loss, sum=t.state["sum"])
        AFTER_REPORT
        if bad >= 3:
            break

trial.main(train, steps=12)
"""
COUNT = "if loss < best:\n            best, bad = loss, 0\n        else:\n            bad += 1"


@pytest.mark.parametrize("late", [False, True], ids=["counts before the report", "counts after the report"])
def test_the_remedies_pasted_as_they_are_make_early_stopping_pass(check: Check, late: bool) -> None:
    """The last remedy raised KeyError in the first step, and none said that a count after the report is lost."""
    source = PLAIN.replace("AFTER_REPORT" if late else "BEFORE_REPORT", COUNT)
    source = source.replace("BEFORE_REPORT", "pass").replace("AFTER_REPORT", "pass")
    remedies = [missing.remedy for missing in check(source=source, steps=None).missing]
    assert [remedy.count("move the lines that change") for remedy in remedies] == [late, late, 0]
    pasted = [remedy.split("`")[1:4:2] for remedy in remedies]
    (load, save), (load_2, save_2), (leave, stop) = pasted
    fixed = source.replace(COUNT, "pass") if late else source
    saves = "\n        ".join((*([COUNT] if late else []), save, save_2, stop))
    fixed = fixed.replace("    for step", f"    {load}\n    {load_2}\n    for step")
    fixed = fixed.replace("        loss =", f"        {leave}\n        loss =")
    fixed = fixed.replace("        t.report", f"        {saves}\n        t.report")
    report = check(source=fixed, steps=None)
    assert report.verdict is Verdict.PASSED, render(report)
    assert report.steps == 5


@pytest.mark.parametrize("steps", [None, 5])
def test_a_resumed_process_that_returns_after_one_report_fails(check: Check, steps: int | None) -> None:
    report = check(source=script(after="if t.resumed: return"), steps=steps)
    without = "ends with its budget, after step 12" if steps is None else "still trains at step 5"
    assert found(report) == [
        (
            Kind.END,
            f"resumed after step 1, the script ends by itself after step 2: without a pause it {without}",
        )
    ]
    assert "t.state" in report.missing[0].remedy


def test_a_resumed_process_that_reports_nothing_is_not_said_to_track_nothing(check: Check) -> None:
    report = check(source=script(before="if t.resumed: return"))
    assert found(report) == [
        (
            Kind.END,
            "resumed after step 1, the script reports nothing and ends: without a pause it still trains at step 3",
        )
    ]
    assert "nothing is tracked" not in render(report)


def test_a_resumed_process_with_an_exit_status_fails(check: Check) -> None:
    report = check(source=script(before="if t.resumed: raise SystemExit(3)"))
    (missing,) = report.missing
    assert missing.finding.startswith("the resumed process fails: SystemExit: 3")


def test_a_variable_that_nothing_reads_is_a_warning(check: Check) -> None:
    report = check(source=script(before="seen = 0", count="seen += 1"))
    assert report.passed
    (warning,) = report.warnings
    assert warning.finding == "variable `seen` is 1 when saved, and 0 after the restore"
    said = render(report)
    assert "warning: variable `seen` is 1 when saved" in said
    assert "if a later step reads it, keep it in t.state: `seen = t.state.get" in said


def test_without_time_three_steps_are_run_and_the_others_named(check: Check) -> None:
    report = check(source=script(*IN_STATE, first=DECIDE_FIRST), steps=None, limit_s=0.0)
    assert (report.steps, report.restores) == (LEAST, 2)
    assert "NOT COVERED: the steps after step 3 of 12, for lack of time" in render(report)


@pytest.mark.parametrize("after", ["if step == 4: return", "pass"], ids=["breaks later", "is sound"])
def test_an_end_that_there_was_no_time_for_is_not_passed(check: Check, after: str) -> None:
    report = check(source=script(after=after), steps=None, limit_s=0.0)
    assert report.verdict is Verdict.UNDECIDED
    assert not report.passed, "a CI reads the exit status"
    said = render(report)
    assert said.startswith(
        "UNDECIDED  script.py: pausing changes nothing up to step 3, and the end was not reached"
    )


@pytest.mark.full
def test_the_end_of_a_gang_that_nobody_asked_to_leave_out_is_not_passed(check: Check) -> None:
    report = check(source=script(), steps=None, ranks=2)
    assert report.verdict is Verdict.UNDECIDED
    assert "as several ranks run 3 steps: --steps N runs more" in render(report)
    assert check(source=script(), steps=3, ranks=2).verdict is Verdict.PASSED


def test_a_number_of_steps_is_run_with_a_restore_after_each(check: Check) -> None:
    report = check(source=script(), steps=4)
    assert (report.steps, report.restored_after) == (4, (1, 2, 3))
    assert "NOT COVERED: the steps after step 4 of 12, as --steps says" in render(report)


def test_the_whole_budget_is_run_where_there_is_time(check: Check) -> None:
    report = check(source=script(), steps=None)
    assert (report.steps, report.end) == (12, End.BUDGET)
    assert "NOT COVERED" not in render(report)
    restored = ", ".join(map(str, report.restored_after))
    assert f"PASSED  script.py: a pause after steps {restored} changes nothing\n" in render(report)
    assert report.restored_after[:2] == (1, 2)
    assert report.restored_after[-2:] == (10, 11)


def first(steps: Sequence[int], count: int, *, ends_by_itself: bool) -> tuple[int, ...]:
    return planned(steps, ends_by_itself=ends_by_itself).first(count)


def test_where_restores_are_tried() -> None:
    steps = [10, 20, 30, 40, 50, 60, 70, 80, 90]
    assert first(steps[:3], 5, ends_by_itself=False) == (10, 20)
    assert first(steps[:3], 5, ends_by_itself=True) == (10, 20, 30)
    assert first(steps, 3, ends_by_itself=False) == (10, 70, 80)
    assert first(steps, 5, ends_by_itself=True) == (10, 20, 50, 80, 90)
    assert first(steps[:1], 3, ends_by_itself=False) == ()
    many = range(1, 101)
    assert len(planned(many, ends_by_itself=True).order) == RESTORES
    assert planned(many, ends_by_itself=True).always == {1, 99, 100}
    assert planned(many, ends_by_itself=False).always == {1, 98, 99}


def test_slow_imports_leave_time_for_the_restores_that_tell_most() -> None:
    assert affordable(RESTORES, limit_s=60.0, spent_s=45.0, train_s=15.0) == LEAST
    assert affordable(RESTORES, limit_s=60.0, spent_s=10.0, train_s=5.0) == 9
    assert affordable(RESTORES, limit_s=60.0, spent_s=1.0, train_s=1.0) == RESTORES


def test_the_time_limit_that_covers_all_is_reported() -> None:
    """It was 600 s for everybody, even for those who had specified more."""
    run = {"straight_s": 25.0, "train_s": 20.0, "process_s": 10.0}
    enough_s = limit_for_all(RESTORES, tried_s=60.0, share=0.1, **run)
    assert enough_s == 15 * 60, "of 200 s of training in a third of it, and half as much again"
    assert limit_for_all(RESTORES, tried_s=900.0, share=1.0, **run) == 1800
    assert limit_for_all(RESTORES, tried_s=60.0, share=1.0, **run) == 5 * 60
    told = affordable(RESTORES, limit_s=enough_s, spent_s=205.0, train_s=200.0)
    assert told == RESTORES


def test_the_time_limit_ends_a_run_at_a_report_but_not_before_three_steps(tmp_path: Path) -> None:
    now = 0.0
    control = Control(
        id="check-0",
        script="",
        target="",
        folder=str(tmp_path),
        params={},
        max_steps=None,
        seed=0,
        resume_step=0,
        restore_dir="",
        checkpoint_dir="",
        result_file=str(tmp_path / "result.json"),
        limit_s=20.0,
    )
    segment = Segment(control, clock=lambda: now)
    segment.runtime(Defaults(params={}, steps=9, seed=0))
    actions = []
    for step, seconds in enumerate([15.0, 15.0, 1.0], start=1):
        now += seconds
        report = Report(
            sequence=step, step=step, metrics={}, checkpoint_dir=None, train_time_s=0.0, save_time_s=0.0
        )
        actions.append(segment.report(report).action)
    assert actions == [Action.CONTINUE, Action.CONTINUE, Action.STOP]
    assert segment.result().end is End.CUT


def late_check(source: str, tmp_path: Path) -> CheckReport:
    """A check whose time is over with the first process of its resumed run."""
    now, started = 0.0, 0

    def launch(control_file: Path, log_file: Path, ranks: int) -> None:
        nonlocal now, started
        launch_segment(control_file, log_file, ranks)
        now, started = now + (5.0 if not started else 60.0), started + 1

    file = tmp_path / "script.py"
    file.write_text(source)
    return run_check(file, launch=launch, clock=lambda: now)


def test_a_late_check_makes_the_restores_that_tell_most_and_names_the_others(tmp_path: Path) -> None:
    report = late_check(script(*IN_STATE, first=DECIDE_FIRST), tmp_path)
    assert report.passed, render(report)
    assert report.restored_after == (1, 4, 5), "those at the end, and one step before it, stay"
    assert report.not_restored_after == (2, 3)
    said = render(report)
    assert said.startswith("PASSED IN PART  script.py: a pause after steps 1, 4, 5 changes nothing\n")
    assert "NOT COVERED: pauses after steps 2, 3, for lack of time" in said


def stopped_check(source: str, tmp_path: Path, processes: int) -> CheckReport:
    """A check whose strict time limit ends the process after this many."""
    started = 0

    def launch(control_file: Path, log_file: Path, ranks: int, timeout_s: float) -> None:
        nonlocal started
        assert 0 < timeout_s <= 90
        if started == processes:
            raise OutOfTimeError
        started += 1
        launch_segment(control_file, log_file, ranks)

    file = tmp_path / "script.py"
    file.write_text(source)
    return run_check(file, launch=launch, clock=lambda: 0.0, stop_s=90.0)


def test_a_strict_limit_ends_the_check_and_names_what_it_did_not_cover(tmp_path: Path) -> None:
    report = stopped_check(script(*IN_STATE, first=DECIDE_FIRST), tmp_path, 3)
    assert report.verdict is Verdict.UNDECIDED
    assert (report.restored_after, report.not_restored_after) == ((1,), (2, 3, 4, 5))
    said = render(report)
    assert "a pause after step 1 changes nothing up to step 2" in said
    assert "NOT COVERED: the steps after step 2 of 12, for lack of time" in said
    assert "both runs end" not in said


def test_a_loss_that_there_was_no_time_to_confirm_is_undecided(tmp_path: Path) -> None:
    report = stopped_check(script(*IN_VARIABLES, after="if bad >= 3: return"), tmp_path, 3)
    assert report.verdict is Verdict.UNDECIDED
    random = script(count="import random; loss = random.SystemRandom().random()")
    report = stopped_check(random, tmp_path, 3)
    assert report.verdict is Verdict.UNDECIDED
    said = render(report)
    assert said.startswith(
        "UNDECIDED  script.py: the time limit ended the check before its result was certain"
    )
    assert (
        "NOT COVERED: a second run without a pause, which shows whether a pause makes the runs differ" in said
    )
    assert "equal bit by bit" not in said


@pytest.mark.parametrize("processes", [0, 1, 2])
def test_a_strict_limit_before_the_first_restore_is_an_error(tmp_path: Path, processes: int) -> None:
    with pytest.raises(CheckError, match="the time limit of 90 s ended") as raised:
        stopped_check(script(), tmp_path, processes)
    assert raised.value.remedy == "Allow more time: --time-limit 180."


def test_a_process_that_runs_at_the_strict_limit_is_killed(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text("import time\ntime.sleep(600)  # longer than any test\n")
    with pytest.raises(CheckError, match="ended the run without a pause, so nothing was compared"):
        run_check(tmp_path / "script.py", folder=tmp_path, stop_s=0.5)


def test_a_late_check_finds_a_patience_in_plain_variables(tmp_path: Path) -> None:
    """A framework that saves the end of its training does so: then only a restore before the end shows that the
    count is lost."""
    before, count = IN_VARIABLES
    ends = script(before, f"{count}; t.state['over'] = bad >= 3", first="if t.state.get('over'): break")
    report = late_check(ends, tmp_path)
    assert report.verdict is Verdict.FAILED, render(report)
    assert '`bad = t.state.get("bad", 0)` before the loop' in render(report)


def test_a_variable_that_there_was_no_time_to_test_leaves_the_check_undecided(
    check: Check, tmp_path: Path
) -> None:
    counted = script(before="seen = 0", count="seen += 1")
    for report in (check(source=counted, steps=None, limit_s=0.0), late_check(counted, tmp_path)):
        assert not report.passed
        assert report.verdict is Verdict.UNDECIDED
        said = render(report)
        assert said.startswith("UNDECIDED  script.py: ")
        assert "but loses variables, and there was no time to test all that may read them" in said
        assert "what others change was not tested" in said
        assert "depends on it" not in said


def test_only_where_every_pause_was_tested_nothing_is_said_to_depend_on_a_variable(check: Check) -> None:
    short = script(before="seen = 0", count="seen += 1").replace("steps=12", "steps=3")
    assert "0 after the restore. No metric and no end depends on it" in render(check(source=short))
    said = render(check(source=short.replace("steps=3", "steps=9")))
    assert "Pauses after steps 1, 2 change nothing up to step 3; what others change was not tested" in said


BEST_AT_THE_END = """
from headrace import trial

class Model:
    weight = 0.0
    def state_dict(self): return {"weight": self.weight}
    def load_state_dict(self, state): self.weight = state["weight"]

def train(t):
    model = Model()
    t.track(model=model)
    t.state.setdefault("best", float("inf"))
    t.state.setdefault("bad", 0)
    BEFORE
    for step in t.steps():
        if t.state["bad"] >= 3: break
        model.weight += 1.0
        loss = abs(model.weight - 2) + 1
        if loss < t.state["best"]:
            t.state["best"], t.state["bad"] = loss, 0
            BETTER
        else:
            t.state["bad"] += 1
        t.report(loss=loss)
    AFTER

trial.main(train, steps=12)
"""


@pytest.mark.parametrize(
    ("before", "better", "after", "passes"),
    [
        (
            "best = None",
            "best = model.state_dict()",
            "if best is not None: model.load_state_dict(best)",
            False,
        ),
        (
            "t.state.setdefault('weight', 0.0)",
            "t.state['weight'] = model.weight",
            "model.weight = t.state['weight']",
            True,
        ),
        ("pass", "pass", "model.weight += 5", True),
    ],
    ids=["in a variable", "in the state", "changed alike"],
)
def test_what_a_script_leaves_at_its_end_is_compared(
    check: Check, before: str, better: str, after: str, *, passes: bool
) -> None:
    """The weights of the best step, restored after the loop, are what is kept of the trial."""
    source = BEST_AT_THE_END.replace("BEFORE", before).replace("BETTER", better).replace("AFTER", after)
    report = check(source=source, steps=None)
    assert report.passed == passes, render(report)
    if not passes:
        assert any('best = t.state.get("best", ' in missing.remedy for missing in report.missing)
        assert "of Model when the script has ended" in render(report)
