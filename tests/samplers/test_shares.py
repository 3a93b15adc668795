"""Shares and values are each other's inverse, in every kind of domain."""

import pytest
from hypothesis import given
from hypothesis import strategies as st
from sampler_studies import CONDITIONAL, MIXED, ODD, spec_of

from headrace_services.scheduler.samplers.shares import at_share, share_of

SPACES = {"mixed": MIXED, "conditional": CONDITIONAL, **ODD}


@pytest.mark.cases(6)
@pytest.mark.parametrize("space", SPACES)
@given(share=st.floats(0.0, 1.0, exclude_max=True))
def test_a_value_is_at_its_share(space: str, share: float) -> None:
    for domain in spec_of("random", SPACES[space]).space.values():
        value = at_share(domain, share)
        again = at_share(domain, share_of(domain, value))
        assert type(again) is type(value)
        if domain.count is not None and domain.count < 2**40:
            assert again == value
        else:
            assert again == pytest.approx(value, rel=1e-6, abs=1e-6)
        assert 0.0 <= share_of(domain, value) <= 1.0
