"""`headrace.optimize`: tunes a function in its own process, with the samplers, policies and rules of a server."""

import itertools
import math
import random
import re
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import headrace
from headrace import InvalidFieldError, MissingExtraError, Result, optimize
from headrace.client.model import StudyState, TerminationReason, TrialInfo
from headrace.errors import SeveralObjectivesError
from headrace.in_process import engine
from headrace.trial import Trial
from headrace_services.scheduler.samplers import make_learner
from headrace_services.scheduler.samplers.history import Result as Measured

LINE = {"x": {"type": "float", "low": -5.0, "high": 5.0}}
PLANE = {**LINE, "y": {"type": "float", "low": -5.0, "high": 5.0}}
ASHA = {"kind": "asha", "eta": 3, "rungs": [1, 3, 9]}


def parabola(t: Trial) -> float:
    return (t["x"] - 1) ** 2


def far_off(t: Trial, step: int) -> float:
    return abs(t["x"] - 1) + 1 / step


def reporting(t: Trial) -> None:
    for step in t.steps():
        t.report(loss=far_off(t, step))


def test_a_function_is_tuned_without_a_server_and_without_files(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HOME", str(tmp_path))
    result = optimize(parabola, LINE, trials=40, seed=3)
    assert isinstance(result, Result)
    assert result.study.state is StudyState.COMPLETED
    assert [trial.number for trial in result.trials] == list(range(40))
    assert result.best is not None
    assert result.best.best_value == min(trial.value or math.inf for trial in result.trials)
    assert result.best.best_value == (result.best.params["x"] - 1) ** 2
    assert result.best.best_value < 0.01
    assert list(tmp_path.iterdir()) == []


def test_the_same_seed_tries_the_same_and_another_one_does_not() -> None:
    def tried(seed: int) -> list[dict[str, Any]]:
        return [dict(one.params) for one in optimize(parabola, LINE, trials=20, seed=seed).trials]

    assert tried(1) == tried(1) != tried(2)


@pytest.mark.parametrize("sampler", ["tpe", "multi_fidelity", "cmaes", {"kind": "nsga2", "population": 4}])
def test_a_proposal_is_the_samplers_own_from_all_results_before(sampler: Any) -> None:
    result = optimize(lambda t: (t["x"] - 1) ** 2 + t["y"] ** 2, PLANE, trials=24, sampler=sampler, seed=5)
    spec = result.study.spec
    learner = make_learner(spec)
    for trial in result.trials:
        assert learner.suggest(trial.number, ()).params == dict(trial.params)
        learner.learn([Measured.of(spec, dict(trial.params), trial.metrics, trial.generation)])


def test_a_model_over_all_rungs_is_told_what_every_trial_reported_at_each() -> None:
    def train(t: Trial) -> Iterator[float]:
        for step in itertools.count(1):
            yield far_off(t, step)

    options: dict[str, Any] = {"minimize": "loss", "policy": ASHA, "sampler": "multi_fidelity", "seed": 2}
    result = optimize(train, LINE, trials=30, steps=9, **options)
    spec = result.study.spec
    told: list[Measured] = []
    params = {trial.number: dict(trial.params) for trial in result.trials}
    known: set[int] = set()
    compared = 0
    for report in result.reports:
        if report.trial not in known and report.trial >= 10:
            learner = make_learner(spec)
            learner.learn(told)
            assert learner.suggest(report.trial, ()).params == params[report.trial]
            compared += 1
        known.add(report.trial)
        if report.step in (1, 3, 9):
            metrics = {"loss": report.metrics["loss"]}
            told.append(Measured.of(spec, params[report.trial], metrics, level=report.step))
    assert compared == 20
    assert {one.level for one in told} == {1, 3, 9}
    assert result.best is not None
    assert abs(float(result.best.params["x"]) - 1) < 0.2


def test_a_report_that_crosses_several_rungs_is_told_once(monkeypatch: pytest.MonkeyPatch) -> None:
    """A median rule checks at a hundred steps, and this function reports at every tenth."""
    from headrace_services.scheduler.samplers.multi_fidelity import MultiFidelityLearner

    told: list[tuple[float, int]] = []
    learn = MultiFidelityLearner.learn

    def noted(self: MultiFidelityLearner, results: Any) -> None:
        told.extend((result.values[0], result.level) for result in results)
        learn(self, results)

    def train(t: Trial) -> None:
        for step in range(10, 101, 10):
            t.report(loss=far_off(t, step) + step, step=step)

    monkeypatch.setattr(MultiFidelityLearner, "learn", noted)
    options: dict[str, Any] = {"minimize": "loss", "policy": "median", "sampler": "multi_fidelity", "seed": 2}
    optimize(train, LINE, trials=12, steps=100, **options)
    assert len({value for value, _ in told}) == len(told)
    assert [level for _, level in told[:5]] == [8, 16, 32, 64, 100]


def test_a_sampler_that_fails_is_replaced_by_random_draws(monkeypatch: pytest.MonkeyPatch) -> None:
    import optuna

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("no model today")

    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_independent", broken)
    monkeypatch.setattr(optuna.samplers.TPESampler, "sample_relative", broken)
    result = optimize(parabola, LINE, trials=14)
    at_random = optimize(parabola, LINE, trials=14, sampler="random")
    assert [one.params for one in result.trials] == [one.params for one in at_random.trials]


def test_metrics_are_maximized_by_name() -> None:
    result = optimize(
        lambda t: {"acc": -abs(t["x"]), "size": 3}, LINE, trials=15, maximize="acc", sampler="random"
    )
    assert result.best is not None
    assert result.best.best_value == max(one.metrics["acc"] for one in result.trials)
    assert result.best.metrics["size"] == 3.0


@pytest.mark.parametrize("given", ["pair", "mapping"])
def test_several_objectives_have_a_front(given: str) -> None:
    def both(t: Trial) -> Any:
        near, far = t["x"] ** 2, (t["x"] - 2) ** 2
        return (near, -far) if given == "pair" else {"near": near, "far": -far}

    result = optimize(both, LINE, trials=30, minimize="near", maximize="far", sampler="random")
    points = {one.number: (one.metrics["near"], -one.metrics["far"]) for one in result.trials}
    unbeaten = {
        number
        for number, point in points.items()
        if not any(
            all(a <= b for a, b in zip(other, point, strict=True)) and other != point
            for other in points.values()
        )
    }
    assert {one.number for one in result.front} == unbeaten
    assert len(unbeaten) > 1
    with pytest.raises(SeveralObjectivesError):
        _ = result.best


def test_the_best_trial_meets_the_constraints() -> None:
    result = optimize(
        lambda t: {"loss": t["x"], "memory": -t["x"]},
        LINE,
        trials=30,
        minimize="loss",
        constraints=[{"metric": "memory", "at_most": 2}],
        sampler="random",
    )
    assert result.best is not None
    met = [one.metrics["loss"] for one in result.trials if one.metrics["memory"] <= 2]
    assert result.best.best_value == min(met)
    assert len(met) < 30
    assert {one.feasible for one in result.trials} == {True, False}


def test_losers_are_stopped_at_a_rung_and_say_why() -> None:
    result = optimize(reporting, LINE, trials=27, steps=9, minimize="loss", sampler="random")
    reasons = {one.reason for one in result.trials}
    assert reasons == {TerminationReason.COMPLETED, TerminationReason.STOPPED_EARLY}
    assert result.study.steps_spent < 27 * 9 / 2
    assert result.best is not None
    assert result.best.step == 9
    stopped = next(one for one in result.trials if one.reason is TerminationReason.STOPPED_EARLY)
    assert "rank" in stopped.detail
    assert len(result.reports) == sum(one.step for one in result.trials)
    assert result.study.counts.stopped_early == sum(
        one.reason is TerminationReason.STOPPED_EARLY for one in result.trials
    )


def test_code_behind_the_loop_runs_where_the_trial_was_stopped() -> None:
    ended = []

    def train(t: Trial) -> None:
        reporting(t)
        ended.append(t.ended)

    optimize(train, LINE, trials=12, steps=9, minimize="loss", sampler="random")
    assert len(ended) == 12
    assert set(ended) == {True, False}


def test_a_report_ends_a_loop_of_another_kind() -> None:
    last = []

    def train(t: Trial) -> None:
        for step in range(1, 10):
            last.append((t.number, step))
            t.report(loss=far_off(t, step))

    result = optimize(train, LINE, trials=12, steps=9, minimize="loss", sampler="random")
    assert [max(step for number, step in last if number == one.number) for one in result.trials] == [
        one.step for one in result.trials
    ]
    assert {one.step for one in result.trials} > {1, 9}


def test_a_generator_is_paused_and_continues_where_it_was() -> None:
    begun: list[int] = []
    closed: list[int] = []

    def train(t: Trial) -> Iterator[float]:
        begun.append(t.number)
        try:
            for step in itertools.count(1):
                yield far_off(t, step)
        finally:
            closed.append(t.number)

    result = optimize(train, LINE, trials=27, steps=9, minimize="loss", policy=ASHA, sampler="random", seed=2)
    assert sorted(begun) == list(range(27)), "each began once"
    assert sorted(closed) == list(range(27)), "none is left open"
    resumed = [one for one in result.trials if one.attempt > 1]
    assert resumed
    assert all(one.steps_spent == one.step for one in result.trials), "no step is taken twice"
    for one in result.trials:
        steps = [report.step for report in result.reports if report.trial == one.number]
        assert steps == list(range(1, one.step + 1))


def test_a_paused_generator_that_raises_when_it_is_closed_takes_no_result_away() -> None:
    def train(t: Trial) -> Iterator[float]:
        try:
            for step in itertools.count(1):
                yield far_off(t, step)
        except GeneratorExit:
            raise OSError("no file to close") from None

    with pytest.warns(UserWarning, match=r"raised while they were closed, first: .*no file to close"):
        result = optimize(train, LINE, trials=9, steps=9, minimize="loss", policy=ASHA, sampler="random")
    assert result.best is not None


def test_a_generator_that_failed_starts_again_and_reports_what_is_new() -> None:
    failed: set[int] = set()

    def train(t: Trial) -> Iterator[float]:
        for step in range(1, 10):
            if step == 5 and t.number not in failed:
                failed.add(t.number)
                raise ValueError("once")
            yield far_off(t, step)

    result = optimize(
        train, LINE, trials=9, steps=9, minimize="loss", policy=ASHA, sampler="random", retries=1
    )
    assert failed
    assert result.study.counts.failed == 0
    assert {one.step for one in result.trials if one.number in failed} == {9}


def test_a_single_value_counts_for_the_whole_budget() -> None:
    result = optimize(parabola, LINE, trials=5, steps=9, policy="run_all")
    assert {one.step for one in result.trials} == {9}


def test_every_bad_argument_is_named_before_anything_runs() -> None:
    called = []
    with pytest.raises(InvalidFieldError) as caught:
        optimize(called.append, {"x": {"type": "float", "low": 2, "high": 1}}, trials=0, minimize=" ")
    assert {one.field for one in caught.value.violations} >= {"space.x.high", "trials", "minimize"} or {
        one.field for one in caught.value.violations
    } >= {"space.x.low", "trials", "minimize"}
    assert called == []


@pytest.mark.parametrize(
    ("changes", "field", "said"),
    [
        ({"policy": "asha", "steps": 9}, "policy.kind", "pauses trials.* generator"),
        ({"policy": "hyperband", "steps": 9}, "policy.kind", "pauses trials"),
        ({"policy": {"kind": "pbt", "interval": 2}, "steps": 9}, "policy.kind", "on workers"),
        ({"sampler": {"kind": "best_of", "study": "old"}}, "sampler.kind", "another study.* enqueue"),
        ({"timeout_s": 0}, "timeout_s", "above 0"),
        ({"callback": 3}, "callback", "cannot be called"),
        ({"function": 3}, "function", "cannot be called"),
        ({"space": [1]}, "space", "must be a mapping"),
        ({"minimize": 3}, "minimize", "names no metric"),
        ({"sampler": "tpee"}, "sampler.kind", "not a known kind"),
    ],
)
def test_what_cannot_run_is_refused_with_a_way_out(changes: dict[str, Any], field: str, said: str) -> None:
    given = {"function": parabola, "space": LINE, "trials": 9, **changes}
    with pytest.raises(InvalidFieldError, match=said) as caught:
        optimize(given.pop("function"), given.pop("space"), **given)
    assert [one.field for one in caught.value.violations] == [field]


def test_with_one_rung_nothing_is_paused_so_any_policy_will_do() -> None:
    assert optimize(parabola, LINE, trials=3, policy="asha").study.state is StudyState.COMPLETED


def test_the_timeout_ends_the_study_with_what_there_is() -> None:
    def slow(t: Trial) -> float:
        time.sleep(0.02)
        return parabola(t)

    result = optimize(slow, LINE, trials=10_000, timeout_s=0.2, sampler="random")
    assert result.study.state is StudyState.STOPPED
    assert "timeout of 0.2 s" in result.study.detail
    assert 1 <= result.study.counts.completed <= 11
    assert result.best is not None


def test_the_timeout_stops_a_trial_at_its_next_report() -> None:
    def endless(t: Trial) -> None:
        for step in t.steps():
            time.sleep(0.01)
            t.report(loss=1 / step)

    result = optimize(
        endless,
        LINE,
        trials=5,
        steps=10**6,
        minimize="loss",
        policy="run_all",
        timeout_s=0.1,
        sampler="random",
    )
    [only] = [one for one in result.trials if one.step]
    assert only.reason is TerminationReason.CANCELLED
    assert 1 <= only.step <= 12


def test_ctrl_c_gives_what_is_there() -> None:
    def interrupted(t: Trial) -> float:
        if t.number == 6:
            raise KeyboardInterrupt
        return parabola(t)

    result = optimize(interrupted, LINE, trials=50, sampler="random")
    assert result.study.state is StudyState.STOPPED
    assert "Ctrl-C" in result.study.detail
    assert result.study.counts.completed == 6
    assert result.best is not None


def test_a_callback_hears_of_each_trial_and_may_end_the_study() -> None:
    heard: list[TrialInfo] = []

    def hear(trial: TrialInfo) -> bool:
        heard.append(trial)
        return len(heard) == 4

    result = optimize(parabola, LINE, trials=50, callback=hear, sampler="random")
    assert [one.number for one in heard[:4]] == [0, 1, 2, 3]
    assert all(one.best_value == (one.params["x"] - 1) ** 2 for one in heard[:4])
    assert result.study.counts.completed == 4
    assert "callback" in result.study.detail


def test_configurations_that_never_began_are_no_trials_of_the_result() -> None:
    """Some are made ahead of need, and cancelled at the study's end."""
    result = optimize(parabola, LINE, trials=50, callback=lambda _: True, sampler="random")
    assert [trial.outcome for trial in result.trials] == ["completed"]
    assert (result.study.counts.total, result.study.counts.cancelled) == (1, 0)


def test_a_function_that_returns_early_is_no_clients_doing() -> None:
    def train(t: Trial) -> None:
        for step in t.steps():
            t.report(loss=t["x"])
            if step == 2:
                return

    result = optimize(train, LINE, trials=1, steps=5, minimize="loss", policy="run_all")
    assert [trial.detail for trial in result.trials] == ["its program ended on its own at step 2 of 5"]


def test_a_failure_is_its_trials_alone() -> None:
    def sometimes(t: Trial) -> float:
        if t.number % 3 == 1:
            raise ValueError(f"no data in trial {t.number}")
        return parabola(t)

    result = optimize(sometimes, LINE, trials=9, sampler="random")
    assert result.study.state is StudyState.COMPLETED
    failed = [one for one in result.trials if one.failed]
    assert [one.number for one in failed] == [1, 4, 7]
    assert failed[0].detail == "ValueError: no data in trial 1"


def test_a_function_that_always_fails_raises_its_own_error() -> None:
    with pytest.raises(KeyError, match="z") as caught:
        optimize(lambda t: t["z"], LINE, trials=50)
    assert "the first 3 trials failed" in caught.value.__notes__[0]


@pytest.mark.parametrize(
    ("returned", "said"),
    [
        (None, "the function gave no result; give a number for 'loss'"),
        ("low", "metric 'loss' is 'low' of type str"),
        ({"acc": 1.0}, "lack the objective's metric 'loss'"),
    ],
)
def test_a_result_that_is_none_says_what_to_give(returned: Any, said: str) -> None:
    with pytest.raises((TypeError, InvalidFieldError), match=said):
        optimize(lambda _: returned, LINE, trials=9, minimize="loss")


def test_a_value_for_several_rungs_says_to_report_them() -> None:
    with pytest.raises(InvalidFieldError, match="jumps over the rungs at 1, 3"):
        optimize(parabola, LINE, trials=9, steps=9)


def test_a_study_without_a_finite_value_warns() -> None:
    with pytest.warns(UserWarning, match="no trial ended with a finite 'value'"):
        result = optimize(lambda _: math.nan, LINE, trials=4)
    assert result.best is None
    assert len(result.trials) == 4


def test_enqueued_configurations_and_the_baseline_come_first() -> None:
    result = optimize(parabola, LINE, trials=4, baseline={"x": 0}, enqueue=[{"x": 2}], sampler="random")
    assert [dict(one.params) for one in result.trials[:2]] == [{"x": 0.0}, {"x": 2.0}]
    assert len(result.trials) == 5
    assert result.study.baseline is not None
    assert result.study.baseline.value == 1.0


def test_a_grid_ends_where_it_is_through() -> None:
    result = optimize(parabola, LINE, trials=100, sampler={"kind": "grid", "points": {"x": 11}})
    assert len(result.trials) == 11
    assert result.best is not None
    assert result.best.best_value == 0.0


def test_a_conditional_parameter_is_there_where_it_exists() -> None:
    space = {
        "kind": {"type": "categorical", "values": ["flat", "bent"]},
        "bend": {"type": "float", "low": 0, "high": 1, "when": {"kind": ["bent"]}},
    }
    result = optimize(lambda t: dict(t).get("bend", 0.5), space, trials=30, sampler="tpe")
    assert {("bend" in one.params) == (one.params["kind"] == "bent") for one in result.trials} == {True}


def test_the_global_random_generators_are_left_alone() -> None:
    random.seed(7)
    np.random.seed(7)
    seeds: list[int] = []

    def function(t: Trial) -> float:
        seeds.append(t.seed)
        return parabola(t)

    before = (random.getstate(), np.random.get_state()[1].tolist())
    optimize(function, LINE, trials=15)
    assert (random.getstate(), np.random.get_state()[1].tolist()) == before
    assert len(set(seeds)) == 15


def test_the_result_is_a_frame_a_figure_and_a_page() -> None:
    result = optimize(reporting, LINE, trials=9, steps=9, minimize="loss", sampler="random")
    frame = result.dataframe()
    assert list(frame.index) == list(range(9))
    assert frame["best_value"].min() == result.best.best_value
    assert {trace.type for trace in result.plot().data} == {"scatter"}
    assert result.plot("parallel").data[0].type == "parcoords"
    assert "Learning curves" in result.report()
    with pytest.raises(InvalidFieldError, match="Choose among curves, parallel, front"):
        result.plot("pie")
    with pytest.raises(InvalidFieldError, match="has one objective"):
        result.plot("front")
    best = result.best
    said = f"best trial {best.number} with {best.best_value}>"
    assert repr(result) == f"<Result in-process: completed, 9 trials, 0 failed, {said}"


def test_without_the_services_it_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(engine, "SERVICE", "headrace_services_that_are_not_there")
    with pytest.raises(
        MissingExtraError, match=r"headrace.optimize needs .*pip install 'headrace\[services\]'"
    ):
        optimize(parabola, LINE, trials=3)


def test_it_is_found_at_the_top() -> None:
    assert headrace.optimize is optimize
    assert "optimize" in dir(headrace)


PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "tune-a-function.md"
PROGRAMS = [
    program
    for program in re.findall(
        r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    if "headrace.optimize" in program
]


@pytest.mark.parametrize("program", PROGRAMS, ids=range(len(PROGRAMS)))
def test_the_programs_of_the_page_run(program: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert len(PROGRAMS) == 4
    exec(compile(program, PAGE.name, "exec"), {"__name__": "program"})
    assert capsys.readouterr().out.strip()
