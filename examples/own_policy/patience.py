"""A policy that stops a trial that has not improved for some checks, and a sampler that mutates the best so far."""

import math
from collections.abc import Mapping, Sequence

import numpy as np

from headrace_services.scheduler.plugins import (
    Action,
    Domain,
    OwnSampler,
    Params,
    Policy,
    Result,
    RungResult,
    StoppingRule,
    StudySpec,
    Value,
    Verdict,
    draw,
    draw_value,
)


def make_policy(spec: StudySpec, options: Mapping[str, Value]) -> Policy:
    """The entry point `patience` of the policies names this."""
    looks = options.get("looks", 2)
    if not isinstance(looks, int) or looks < 1 or options.keys() - {"looks"}:
        raise ValueError("patience has one option, looks: a whole number of at least 1")
    return Patience(spec, looks)


def make_sampler(spec: StudySpec, options: Mapping[str, Value]) -> OwnSampler:
    """The entry point `mutate` of the samplers names this."""
    share = options.get("share", 0.3)
    if not isinstance(share, int | float) or not 0 < share <= 1 or options.keys() - {"share"}:
        raise ValueError("mutate has one option, share: a number above 0 and up to 1")
    return Mutate(spec, share)


class Patience(StoppingRule):
    """Stops a trial that has not improved on its own best value for `looks` checks."""

    rule = "patience"

    def __init__(self, spec: StudySpec, looks: int) -> None:
        ladder = spec.rungs()
        grace = ladder[min(looks, len(ladder) - 1)]
        super().__init__(ladder=ladder, grace=grace, maximize=spec.maximizes())
        self._looks = looks
        self._seen: dict[int, tuple[float, int, int]] = {}
        """For each trial: its best value, signed so that less is better, its reports since, and the last one's step."""

    def _fold(self, result: RungResult) -> None:
        if result.value is None or not result.finite:
            return
        signed = self._sign * result.value
        best, idle, step = self._seen.get(result.trial, (math.inf, 0, 0))
        if signed < best:
            self._seen[result.trial] = (signed, 0, result.step)
        elif result.step != step:  # one report may reach several rungs
            self._seen[result.trial] = (best, idle + 1, result.step)

    def _judge(self, result: RungResult) -> Verdict:
        _, idle, _ = self._seen[result.trial]
        if idle >= self._looks:
            return self._verdict(result, Action.STOP, f"no improvement for {idle} looks: it stops")
        return self._verdict(result, Action.CONTINUE, f"it improved within {self._looks} looks: it continues")


class Mutate:
    """Takes the best configuration so far, and draws a share of its parameters again."""

    def __init__(self, spec: StudySpec, share: float) -> None:
        self._spec = spec
        self._share = share

    def suggest(
        self,
        number: int,
        results: Sequence[Result],
        pending: Sequence[Params],  # noqa: ARG002  (it heeds none)
        generator: np.random.Generator,
    ) -> Params:
        """One proposal; every fourth is a random draw."""
        sign = self._spec.objective.sign
        finite = [result for result in results if result.finite]
        best: Params = {}
        if finite and number % 4:
            best = min(finite, key=lambda result: sign * result.values[0]).params

        def choose(name: str, domain: Domain) -> Value:
            keep = name in best and generator.random() >= self._share
            return best[name] if keep else draw_value(domain, generator)

        return draw(self._spec.space, choose)
