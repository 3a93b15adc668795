"""A model may hold its trial: copying the model copies no connection to the worker, and pickling says what to
leave out."""

import copy
import pickle

import pytest

from headrace.trial import main
from headrace.trial.session import Trial


class Model:
    def __init__(self, t: Trial) -> None:
        self.t, self.w = t, [1.0]


def test_a_copy_of_what_holds_the_trial_holds_the_same_trial() -> None:
    seen: list[Trial] = []

    def train(t: Trial) -> None:
        seen.append(t)
        model = Model(t)
        for copied in (copy.deepcopy(model), copy.copy(model)):
            assert copied.t is t
        assert copy.deepcopy(model).w is not model.w
        with pytest.raises(TypeError, match=r"a Trial stays in its process .* save_hyperparameters\(ignore"):
            pickle.dumps(model)
        for _ in t.steps():
            t.report(loss=1.0)

    main(train, defaults={"lr": 0.1}, steps=1, argv=[])
    assert seen
