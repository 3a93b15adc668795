"""`headrace check` on a population: a parameter that mutates must affect the training that continues."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, Kind, render
from headrace.spec import parse_spec
from headrace.spec.configuration import mutations_of

Check = Callable[..., CheckReport]

LOOP = "for epoch in t.steps():\n"
SET = LOOP + "        for group in opt.param_groups:\n            group.update(lr=t.params['lr'])\n"
NO_SCHEDULE = (
    ("    sched = torch.optim.lr_scheduler.CosineAnnealingLR(opt, T_max=t.max_steps)\n", ""),
    ("lr_scheduler=sched, ", ""),
    ("        sched.step()\n", ""),
)
LR = {"params": {"lr": 0.05}, "mutations": {"lr": {"lr": 0.5}}}


def test_a_rate_that_the_restored_optimizer_overrides_has_no_effect(check: Check) -> None:
    report = check(*NO_SCHEDULE, **LR)
    (missing,) = report.missing
    assert missing.kind is Kind.PARAMETER
    assert missing.finding == (
        "lr changed from 0.05 to 0.5 at step 1 has no effect: the next step is the same bit by bit"
    )
    assert 'inside the loop, from t.params["lr"]' in missing.remedy
    assert "does not train with its new parameters" in render(report)


@pytest.mark.full
def test_a_rate_that_is_set_in_the_loop_passes(check: Check) -> None:
    report = check(*NO_SCHEDULE, (LOOP, SET), **LR)
    assert report.passed, render(report)


@pytest.mark.full
def test_a_metric_that_repeats_the_parameter_is_no_effect(check: Check) -> None:
    report = check(*NO_SCHEDULE, ("t.report(loss=loss,", "t.report(loss=loss, lr=t.params['lr'],"), **LR)
    assert [missing.kind for missing in report.missing] == [Kind.PARAMETER]


def test_a_width_under_a_trained_state_is_to_be_left_out(check: Check) -> None:
    wide = "nn.Linear(3, t.params['width']), nn.Tanh(), nn.Dropout(0.5), nn.Linear(t.params['width'], 1)"
    report = check(
        ("nn.Linear(3, 8), nn.Tanh(), nn.Dropout(0.5), nn.Linear(8, 1)", wide),
        params={"lr": 0.05, "width": 8},
        mutations={"width": {"lr": 0.05, "width": 16}},
    )
    (missing,) = report.missing
    assert missing.finding.startswith("width changed from 8 to 16 at step 1 fails: ")
    assert "leave width out of policy.mutable" in missing.remedy


STUDY = {
    "objective": {"metric": "loss", "goal": "minimize"},
    "space": {
        "lr": {"type": "float", "low": 0.01, "high": 1.0},
        "kind": {"type": "categorical", "values": ["a", "b"]},
        "slope": {"type": "float", "low": 0.0, "high": 1.0, "when": {"kind": ["b"]}},
        "one": {"type": "int", "low": 3, "high": 3},
    },
    "trials": 8,
    "steps": 30,
}


def test_what_a_population_may_change_follows_from_the_study() -> None:
    values = {"lr": 0.01, "kind": "a", "one": 3}
    population = parse_spec({**STUDY, "policy": {"kind": "pbt"}})
    found = mutations_of(population, values)
    assert found["lr"] == {**values, "lr": 1.0}
    assert found["kind"].keys() == {"lr", "kind", "slope", "one"}
    assert found.keys() == {"lr", "kind"}
    only = parse_spec({**STUDY, "policy": {"kind": "pbt", "mutable": ["lr"]}})
    assert mutations_of(only, values).keys() == {"lr"}
    assert mutations_of(parse_spec({**STUDY, "policy": {"kind": "asha"}}), values) == {}
