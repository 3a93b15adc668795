"""The seed's third exercise on the virtual cluster: C = 84 GB at B = 2 GB/s, so a pause costs 2C/B = 84 s.

With rungs of T seconds and R = 3T, 2T or T to the full budget, a trial that is promoted with probability p is paused
iff (1 - p)·min(R, T + 84) > 84. By hand, for the four rungs here:

| T | with 3 rungs to go | with 2 | with 1 |
| --- | --- | --- | --- |
| 120 s | p < 1 - 84/204 = 58.8% | p < 1 - 84/204 = 58.8% | p < 1 - 84/120 = 30% |
| 60 s | p < 1 - 84/144 = 41.7% | p < 1 - 84/120 = 30% | never |
| 28 s | never: 3·28 s = 84 s | never | never |

Each trial is worse than those before it, so most are at rank n of n results, with p = 3⁻ⁿ.
"""

from typing import Any

import pytest
from simulated_studies import flat, make_spec, simulate

from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.summary import summarise

PRICE_S = 84.0
COSTS = Costs.of_size(84e9, 2e9)
WORSENING = [float(number) for number in range(27)]
RUN_ALL_STEPS = 27 * 4
NEVER = 0.0
"""No probability is below it."""


def run(rung_s: float, *, priced: bool) -> tuple[Any, list[dict[str, Any]]]:
    """A study of 27 trials whose rungs are `rung_s` apart, and the prices of its decisions."""
    spec = make_spec(
        max_trials=27,
        max_steps=4,
        policy={"kind": "asha", "eta": 3, "rungs": [1, 2, 3, 4], "price_pauses": priced},
    )
    simulation, study = simulate(
        spec, flat(WORSENING, steps=4, step_s=rung_s), workers=2, costs=COSTS, log=True
    )
    assert study.rows.events is not None
    explanations: Any = [
        {**event.detail, **event.detail["explanation"]}  # type: ignore[dict-item]  # JSON of a decision
        for event in study.rows.events
        if event.kind == "decision_made"
    ]
    prices = [told for told in explanations if told.get("pause_price")]
    return summarise(simulation, study), prices


@pytest.mark.parametrize(
    ("rung_s", "paused_below"),
    [
        (120.0, {0: 1 - 84 / 204, 1: 1 - 84 / 204, 2: 1 - 84 / 120}),
        (60.0, {0: 1 - 84 / 144, 1: 1 - 84 / 120, 2: NEVER}),
        (28.0, {0: NEVER, 1: NEVER, 2: NEVER}),
    ],
)
def test_the_paused_trials_are_those_computed_by_hand(rung_s, paused_below):
    _, prices = run(rung_s, priced=True)
    assert {told.get("rung", 0) for told in prices} == {0, 1, 2}
    for told in prices:
        price = told["pause_price"]
        assert (price["price_s"], price["write_s"], price["read_s"]) == (PRICE_S, 42.0, 42.0)
        assert price["rest_s"] == pytest.approx((3 - told.get("rung", 0)) * rung_s)
        idle = "nothing else is waiting for its slot" in told["sentence"]
        pauses = not idle and price["promotion_probability"] < paused_below[told.get("rung", 0)]
        assert told["action"] == f"DECISION_ACTION_{'PAUSE' if pauses else 'CONTINUE'}", told["sentence"]
        assert bool(price.get("pays")) is pauses


def test_rungs_of_120_s_pay_for_pausing_hopeless_trials():
    """Hopeless trials are paused at once; the first one at the last rung is worth continuing."""
    summary, prices = run(120.0, priced=True)
    hopeless = [told for told in prices if told.get("rung", 0) < 2 and told["rank"] > 2]
    assert len(hopeless) >= 24
    assert all(told["action"] == "DECISION_ACTION_PAUSE" for told in hopeless)
    worth = [told["pause_price"]["worth_s"] for told in hopeless]
    assert min(worth) == pytest.approx((1 - 3**-3) * 204)
    assert "84 s (42 s to write and 42 s to read)" in hopeless[0]["sentence"]
    assert "120 s to the next rung and a pause there would be wasted: it is paused" in hopeless[0]["sentence"]
    (finalist,) = [told for told in prices if told.get("rung", 0) == 2 and told["results"] == 1]
    assert finalist["action"] == "DECISION_ACTION_CONTINUE"
    assert finalist["pause_price"]["worth_s"] == pytest.approx((1 - 1 / 3) * 120)
    assert "120 s to the full budget would be wasted: it continues" in finalist["sentence"]
    assert summary.pauses >= len(hopeless)


def test_where_pausing_pays():
    """A rung of 20 minutes is worth 14 pauses: the trials that are paused at any price are paused, and no others."""
    priced, prices = run(1200.0, priced=True)
    free, _ = run(1200.0, priced=False)
    assert prices
    assert all(told["action"] == "DECISION_ACTION_PAUSE" for told in prices if told["pause_price"]["worth_s"])
    assert (priced.steps, priced.pauses, priced.resumes) == (free.steps, free.pauses, free.resumes)
    assert priced.completed < 10
    assert priced.slot_s < 0.5 * 1200 * RUN_ALL_STEPS


def test_where_it_does_not():
    """The rest takes no longer than a pause costs: nobody is paused, and all run to the end."""
    priced, prices = run(28.0, priced=True)
    assert prices
    assert max(told["pause_price"]["worth_s"] for told in prices) <= PRICE_S
    assert (priced.pauses, priced.resumes, priced.completed, priced.steps) == (0, 0, 27, RUN_ALL_STEPS)
    free, _ = run(28.0, priced=False)
    assert free.pauses > 20
