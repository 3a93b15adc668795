"""TPE gets its space: it proposes the same as if it derived the space from the results."""

import pytest
from optuna.samplers import TPESampler
from sampler_studies import CONDITIONAL, MIXED, by_position, play, spec_of

from headrace_services.scheduler.samplers.generations import FixedSpaceTpe


@pytest.mark.parametrize(
    "space", [MIXED, CONDITIONAL, {**MIXED, "only": {"type": "int", "low": 3, "high": 3}}]
)
def test_a_space_that_is_known_is_the_one_that_is_found(space, monkeypatch):
    spec = spec_of("tpe", space)
    told = [one.params for one in play(spec, 14, by_position)]
    looked = []

    def look(self, study, trial):
        looked.append(self)
        return TPESampler.infer_relative_search_space(self, study, trial)

    monkeypatch.setattr(FixedSpaceTpe, "infer_relative_search_space", look)
    assert [one.params for one in play(spec, 14, by_position)] == told
    assert looked
