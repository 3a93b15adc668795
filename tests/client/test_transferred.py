"""The cost of trusting only the first few configurations of a transfer."""

from typing import Any

import pytest

from headrace.cli.summary import Summary
from headrace.client import convert
from headrace.client.transfer import Transferred
from headrace.spec import parse_spec, to_proto
from headrace.v1 import study_pb2, trial_pb2


def transferred(
    goal: str, *values: float | None, failed: tuple[int, ...] = (), eager: float | None = None
) -> Transferred:
    spec: dict[str, Any] = {
        "objective": {"metric": "loss", "goal": goal},
        "space": {"x": {"type": "float", "low": 0.0, "high": 1.0}},
        "sampler": {"kind": "best_of", "study": "small", "eager": eager},
        "policy": {"kind": "run_all"},
        "trials": len(values),
        "steps": 2,
    }
    study = study_pb2.Study(name="studies/small-target", spec=to_proto(parse_spec(spec)))
    trials = []
    for number, value in enumerate(values):
        trial = trial_pb2.Trial(name=f"studies/small-target/trials/{number}", number=number, source=number)
        trial.state = trial_pb2.TRIAL_STATE_TERMINATED
        trial.termination_reason = (
            trial_pb2.TERMINATION_REASON_FAILED
            if number in failed
            else trial_pb2.TERMINATION_REASON_COMPLETED
        )
        if value is not None:
            trial.score = value
        trials.append(convert.trial(trial))
    found = Transferred.of(convert.study(study), trials)
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("goal", "regrets"), [("minimize", (2.0, 1.0, 1.0, 0.0)), ("maximize", (0.0, 0.0, 0.0, 0.0))]
)
def test_the_regret_of_the_first_few(goal: str, regrets: tuple[float, ...]) -> None:
    found = transferred(goal, 3.0, 2.0, 2.5, 1.0)
    assert found.regrets == regrets
    assert found.regret == regrets[0]


def test_one_that_failed_has_no_regret_of_its_own() -> None:
    found = transferred("minimize", 1.0, None, 3.0, 2.0, failed=(0,))
    assert found.regrets == (None, None, 1.0, 0.0)
    assert found.regret is None
    assert transferred("minimize", None).regrets == (None,)


@pytest.mark.parametrize(
    ("eager", "order"), [(None, "the best one first"), (0.5, "in the order in which they were taken")]
)
def test_a_summary_says_in_which_order_they_stand(eager: float | None, order: str) -> None:
    found = transferred("minimize", 1.0, 2.0, eager=eager)
    lines = Summary(study=found.study, transferred=found).lines()
    assert ("taken over", f"the best configurations of study small, {order}") in lines
