"""The contract suite of Headrace, on this package. Install it first: `pip install .`, then `pytest`."""

from headrace_services.scheduler.plugins.testing import check_policy, check_sampler


def test_the_policy_keeps_the_contract() -> None:
    check_policy("patience", {"looks": 1})
    check_policy("patience")


def test_the_sampler_keeps_the_contract() -> None:
    check_sampler("mutate", {"share": 0.5})
