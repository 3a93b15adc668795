"""The seed's third exercise on the virtual cluster: C = 84 GB at B = 2 GB/s, so a pause costs 2C/B = 84 s.

A rung of T = 120 s is worth a pause of a trial that will hardly be promoted; one of 60 s never is.
"""

from typing import Any

import pytest
from simulated_studies import flat, make_spec, simulate

from headrace_services.scheduler.simulator.costs import Costs
from headrace_services.scheduler.simulator.summary import summarise

COSTS = Costs.of_size(84e9, 2e9)
WORSENING = [float(number) for number in range(27)]


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


def test_a_rung_of_120_s_pays_for_pausing_hopeless_trials():
    summary, prices = run(120.0, priced=True)
    assert {told["pause_price"]["price_s"] for told in prices} == {84.0}
    paying = [told for told in prices if told["pause_price"].get("pays")]
    assert paying
    for told in prices:
        price = told["pause_price"]
        worth = (1 - price["promotion_probability"]) * 120.0
        if not price["worth_s"]:
            assert "nothing else" in told["sentence"]  # to run: then the slot has no better use
            worth = 0.0
        assert price["worth_s"] == pytest.approx(worth)
        assert bool(price.get("pays")) is (worth > 84.0)
        assert told["action"] == f"DECISION_ACTION_{'PAUSE' if worth > 84.0 else 'CONTINUE'}"
    assert summary.pauses >= len(paying) > 0
    assert "84 s (42 s to write and 42 s to read)" in paying[0]["sentence"]


def test_a_rung_of_60_s_never_does():
    summary, prices = run(60.0, priced=True)
    assert prices
    assert not any(told["pause_price"].get("pays") for told in prices)
    assert summary.pauses == 0
    assert summary.resumes == 0


def test_what_it_comes_to_in_slot_time():
    """Where pausing pays, the priced study spends far less than one that never pauses; what it saves is training."""
    pays, _ = run(1200.0, priced=True)
    free, _ = run(1200.0, priced=False)
    assert pays.slot_s <= 1.05 * free.slot_s
    assert pays.completed < 10
    never, _ = run(60.0, priced=True)
    assert never.completed == 27
