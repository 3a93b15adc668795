"""Plays the tests' studies in the simulator, four trials per process: proposals are made while members train."""

from collections.abc import Callable
from dataclasses import dataclass, field

from headrace.spec import StudySpec
from headrace_services.scheduler.core.lifecycle import StudyState
from headrace_services.scheduler.core.placing import LOOKAHEAD
from headrace_services.scheduler.samplers import (
    Learner,
    Params,
    Result,
    Suggestion,
    make_learner,
    make_sampler,
)
from headrace_services.scheduler.simulator.cluster import machines
from headrace_services.scheduler.simulator.engine import Simulation
from headrace_services.scheduler.simulator.study import StudySimulation

MOST = 4


def play(
    spec: StudySpec, trials: int, measure: Callable[[Params], Result], *, in_flight: int = MOST
) -> list[Suggestion]:
    """Run a study of bundles to its end. As many trials are in flight as the bundle has seats; `in_flight` is
    ignored."""
    del in_flight
    fused = {
        "template": {"callable": "train:train", "working_dir": "/"},
        "fuse": {"most": MOST},
        "max_trials": trials,
    }
    spec = StudySpec.model_validate({**spec.model_dump(mode="json"), **fused})
    model = Model(spec, measure, make_learner(spec))
    study = StudySimulation.of(spec, model)
    study.rows.fold.sampler = model
    Simulation(machines(1), [study]).run()
    assert study.rows.study.state in (StudyState.COMPLETED, StudyState.FAILED)
    assert len({stay.grant for stay in study.record.stays}) == 1
    return model.made


@dataclass
class Model:
    """The study's sampler, and its trials' curves: what is reported is learnt before the next proposal."""

    spec: StudySpec
    measure: Callable[[Params], Result]
    learner: Learner
    made: list[Suggestion] = field(default_factory=list)
    reported: set[int] = field(default_factory=set)

    @property
    def size(self) -> int | None:
        return make_sampler(self.spec).size

    def suggest(self, number: int) -> Params | None:
        if self.size is not None and number >= self.size:
            return None
        if number == len(self.made):
            pending = [one.params for place, one in enumerate(self.made) if place not in self.reported]
            assert len(pending) < MOST + LOOKAHEAD
            self.made.append(self.learner.suggest(number, pending))
        return self.made[number].params

    def params(self, number: int) -> Params | None:
        del number
        return None

    def curve(self, number: int) -> "Measured":
        return Measured(self, number)

    def fork(self) -> "Model":
        raise NotImplementedError


@dataclass
class Measured:
    """One trial. Its value is learnt when it is reported."""

    model: Model
    number: int
    last_step: int | None = None

    def report_step(self, after: int, milestone: int) -> int:
        return max(milestone, after + 1)

    def value(self, step: int) -> float | None:
        del step
        suggestion = self.model.made[self.number]
        result = self.model.measure(suggestion.params)
        self.model.reported.add(self.number)
        self.model.learner.learn(
            [
                Result(
                    params=result.params,
                    values=result.values,
                    excesses=result.excesses,
                    generation=suggestion.generation,
                )
            ]
        )
        return result.values[0]

    def train_s(self, start: int, end: int) -> float:
        return float(end - start) * (1 + self.number % 3)

    def points(self, start: int, end: int) -> tuple[tuple[int, float], ...]:
        del start, end
        return ()

    def truth(self, step: int) -> float | None:
        del step
        return None
