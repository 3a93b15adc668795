"""The contract suite: what every policy and every sampler must do. Call it in your package's tests.

    from headrace_services.scheduler.plugins.testing import check_policy, check_sampler

    def test_my_policy():
        check_policy("patience", {"looks": 2})

Both raise `AssertionError` with what was broken. Your package must be installed, so that its entry points are found.
"""

import random
from collections.abc import Mapping
from typing import Any

import numpy as np

from headrace.spec import StudySpec, Value, check_assignment
from headrace.spec.space import draw
from headrace_services.scheduler.core.policies import make_policy
from headrace_services.scheduler.core.policies.protocol import RungResult, Verdict
from headrace_services.scheduler.core.sampling import draw_value
from headrace_services.scheduler.plugins.histories import History
from headrace_services.scheduler.samplers import make_learner
from headrace_services.scheduler.samplers.history import Result

SPACE: dict[str, Any] = {
    "x": {"type": "float", "low": 1e-4, "high": 1.0, "log": True},
    "width": {"type": "int", "low": 8, "high": 64, "step": 8},
    "kind": {"type": "categorical", "values": ["plain", "bent"]},
    "bend": {
        "type": "float",
        "low": 0.0,
        "high": 1.0,
        "conditions": [{"parameter": "kind", "values": ["bent"]}],
    },
}
_RUNGS = ([1, 3, 9], [1, 2, 3, 4, 5], [4])


def check_policy(
    name: str, options: Mapping[str, Value] | None = None, *, histories: int = 60, rungs: Any = None
) -> None:
    """Play random histories with the policy of this name, and check its contract.

    Every study ends. Questions change nothing. A policy rebuilt from the log gives the same answers, even if it is
    given all trials first. Mirrored values give mirrored decisions. Explanations contain the trial's place.
    `rungs` are the rungs to try; by default, a few.
    """
    own: dict[str, Any] = {"kind": "own", "name": name, "options": dict(options or {})}
    for ladder in [list(rungs)] if rungs else _RUNGS:
        low, high = (
            _study(policy={**own, "rungs": ladder}, max_steps=ladder[-1], goal=goal)
            for goal in ("minimize", "maximize")
        )
        _small_print(low)
        for seed in range(histories):
            down = _Asked(low, random.Random(seed)).play()  # noqa: S311  (a history is repeatable)
            up = _Asked(high, random.Random(seed), flip=True).play()  # noqa: S311
            assert down.decisions == up.decisions, (
                f"history {seed}: the same values with the other sign and goal are decided otherwise"
            )
            left = [*down.running, *down.pending]
            assert not left, f"history {seed}: trials are left to run"


def check_sampler(
    name: str,
    options: Mapping[str, Value] | None = None,
    *,
    space: Mapping[str, Any] | None = None,
    trials: int = 30,
) -> None:
    """Ask the sampler of this name for the configurations of small studies, and check its contract.

    Each configuration is in the space, with exactly the parameters that exist in it. The same results give the
    same proposal, even from a new sampler. Other seeds give other proposals. Missing and infinite values do no
    harm.
    """
    chance = random.Random(1)  # noqa: S311
    values = [chance.choice([0.1, 0.5, 0.5, 2.0, float("nan"), float("inf")]) for _ in range(trials)]
    tried: list[list[dict[str, Value]]] = []
    for seed in (1, 2):
        spec = _study(
            sampler={"kind": "own", "name": name, "options": dict(options or {})},
            space=space or SPACE,
            seed=seed,
        )
        learner, results = make_learner(spec), list[Result]()
        for number, value in enumerate(values):
            pending = [_any_configuration(spec, number)] if number % 3 == 0 else []
            params = learner.suggest(number, pending).params
            belongs = check_assignment(spec, params, field=f"proposal {number}")
            assert belongs == params, f"proposal {number} is {params}, which the space writes as {belongs}"
            again = make_learner(spec)
            again.learn(results)
            other = again.suggest(number, pending).params
            assert other == params, f"proposal {number} was {params}, and {other} of a new sampler"
            results.append(Result(params=params, values=(value,)))
            learner.learn(results[-1:])
        tried.append([result.params for result in results])
    assert tried[0] != tried[1], "the study's seed changes nothing: draw from the generator that suggest gets"


class _Asked(History):
    """A history that asks every question twice."""

    def check(self, trial: int, bracket: int, rung: int, verdict: Verdict) -> None:
        super().check(trial, bracket, rung, verdict)
        again = self.policy.verdict(trial, bracket, rung, more=self.more)
        assert repr(again) == repr(verdict), (
            f"asked twice it says {verdict}, then {again}: a question changes nothing"
        )


def _small_print(spec: StudySpec) -> None:
    policy = make_policy(spec)
    assert policy.next_promotion() is None, "it promotes a trial before any result"
    for bracket in range(policy.brackets):
        ladder = policy.ladder(bracket)
        assert ladder[-1] == spec.max_steps, f"bracket {bracket} ends at {ladder[-1]}, not at the full budget"
        assert list(ladder) == sorted(set(ladder)), f"the rungs of bracket {bracket} do not grow: {ladder}"
    for bracket in (policy.brackets, -1):
        _must_raise(IndexError, policy.ladder, bracket, about=f"ladder({bracket}), which is no bracket")
    policy.withdraw(99)
    bracket = policy.bracket(0)
    policy.joined(0, bracket, {"x": 0.5})
    result = RungResult(
        trial=0,
        bracket=bracket,
        rung=0,
        milestone=spec.rungs()[0],
        step=spec.rungs()[0],
        value=1.0,
        arrival=1,
    )
    policy.record(result)
    _must_raise(ValueError, policy.record, result, about="record of a result that is there")
    _must_raise(ValueError, policy.verdict, 5, bracket, 0, about="verdict on a trial without a result")
    _must_raise(ValueError, policy.verdict, 0, bracket, 99, about="verdict at a rung that there is not")


def _must_raise(error: type[Exception], call: Any, *args: object, about: str) -> None:
    try:
        call(*args)
    except error:
        return
    raise AssertionError(f"{about} must raise {error.__name__}")


def _any_configuration(spec: StudySpec, number: int) -> dict[str, Value]:
    generator = np.random.default_rng(number)
    return dict(draw(spec.space, lambda _, domain: draw_value(domain, generator)))


def _study(*, goal: str = "minimize", space: Mapping[str, Any] | None = None, **fields: Any) -> StudySpec:
    return StudySpec.model_validate(
        {
            "objective": {"metric": "loss", "goal": goal},
            "space": space or SPACE,
            "max_trials": 1000,
            "max_steps": 1,
            "policy": {"kind": "run_all"},
            **fields,
        }
    )
