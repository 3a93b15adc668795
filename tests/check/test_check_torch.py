"""State that torch keeps outside every state_dict(): gradients, requires_grad, modes, and what a loader's workers
hold."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, Kind, render

Check = Callable[..., CheckReport]

STEP = "            loss.backward()\n            opt.step()\n"
CLEARED = ("            opt.zero_grad()\n", "")
ACCUMULATED = (
    STEP,
    """
            (loss / 2).backward()
            t.state['n'] = t.state.get('n', 0) + 1
            if t.state['n'] % 2 == 0: opt.step(); opt.zero_grad()
""",
)
LOOP = "for epoch in t.steps():\n"
FREEZE = ("    t.track(", "    model[0].requires_grad_(False)\n    t.track(")


def only(report: CheckReport) -> tuple[Kind, str, str]:
    (missing,) = report.missing
    return missing.kind, missing.finding, missing.remedy


@pytest.mark.parametrize("set_to_none", [True, False])
def test_gradients_that_are_accumulated_over_a_report_are_named(check: Check, set_to_none: bool) -> None:
    """Three batches per step, and an update after every two: one gradient is left over. It was called "outside the
    script's variables"."""
    report = check(CLEARED, ACCUMULATED, ("zero_grad()", f"zero_grad(set_to_none={set_to_none})"))
    kind, finding, remedy = only(report)
    assert kind is Kind.GRADIENTS
    assert finding.startswith("the step after a report adds to the gradients of `model.0.bias` and 3 more")
    assert "before the report" in remedy


def test_gradients_that_a_step_clears_first_are_not_blamed(check: Check) -> None:
    """Each step leaves gradients at its report, but something else differs."""
    report = check(
        ("            opt.zero_grad()", "            opt.zero_grad(set_to_none=False)"),
        ("t.report(loss=loss,", "t.report(loss=loss * (1 + t.resumed),"),
    )
    assert report.missing == ()
    assert report.trajectory is not None
    assert check(CLEARED, (STEP, STEP + "            opt.zero_grad()\n")).passed


SPARSE = """
import torch
from headrace import trial

def train(t):
    model = torch.nn.Embedding(4, 2, sparse=True)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    t.track(model=model, optimizer=optimizer)
    for step in t.steps():
        optimizer.zero_grad()
        loss = model(torch.tensor([step % 4])).square().sum()
        loss.backward()
        optimizer.step()
        t.report(loss=loss)

trial.main(train, steps=4)
"""


def test_sparse_gradients_are_left_alone(check: Check) -> None:
    report = check(source=SPARSE)
    assert report.passed, render(report)


@pytest.mark.parametrize("when", ["==", ">="])
def test_a_layer_that_is_unfrozen_once_is_named(check: Check, when: str) -> None:
    report = check(
        FREEZE, (LOOP, LOOP + f"        if epoch {when} 2: model[0].requires_grad_(True)\n"), steps=4
    )
    if when == ">=":
        assert report.passed, render(report)
        return
    kind, finding, remedy = only(report)
    assert kind is Kind.MODULE
    assert finding == (
        "requires_grad of `model.0.weight` and 1 more is True when saved, and False after the restore: no state_dict() "
        "holds it"
    )
    assert "requires_grad_(step >= 3)" in remedy


def test_a_mode_that_is_set_once_is_named(check: Check) -> None:
    report = check((LOOP, LOOP + "        if epoch == 2: model.eval()\n"), steps=4)
    kind, finding, _ = only(report)
    assert kind is Kind.MODULE
    assert finding.startswith("module `model` and 4 more is in eval mode when saved, and in train mode after")


LOADER = """
import torch
from headrace import trial

class Noisy(torch.utils.data.Dataset):
    def __len__(self):
        return 8
    def __getitem__(self, at):
        return at + torch.rand(())

def train(t):
    forked = {"num_workers": 1, "multiprocessing_context": "fork"}
    loader = torch.utils.data.DataLoader(Noisy(), batch_size=2, PERSISTENT, **forked)
    t.state.setdefault("total", 0.0)
    t.track()
    for _ in t.steps():
        for batch in loader:
            t.state["total"] += batch.sum().item()
        t.report(loss=t.state["total"])

trial.main(train, steps=4)
"""


def test_persistent_workers_are_told_from_workers_that_fetch_ahead(check: Check) -> None:
    """The check said that they fetch ahead, and to report at the end of an epoch, which this script does."""
    kind, finding, remedy = only(check(source=LOADER.replace("PERSISTENT", "persistent_workers=True")))
    assert kind is Kind.DATA
    assert finding == (
        "a pause ends the persistent workers of DataLoader `loader`, with their generators and copies of the dataset"
    )
    assert remedy.startswith("use persistent_workers=False")


def test_the_remedy_for_persistent_workers_is_one(check: Check) -> None:
    report = check(source=LOADER.replace("PERSISTENT", "persistent_workers=False"))
    assert report.passed, render(report)


WITHIN = """
import torch
from headrace import trial

def train(t):
    data = torch.utils.data.DataLoader(range(8), batch_size=2, shuffle=True)
    t.state.setdefault("total", 0.0)
    t.track()
    ITERATE

trial.main(train, steps=4)
"""
HIDDEN = """for batch in data:
        t.state["total"] += batch[0].item() / (t.step + 1)
        t.report(loss=t.state["total"])"""
HELD = """batches = (batch for batch in data)
    for step in t.steps():
        t.state["total"] += next(batches)[0].item() / step
        t.report(loss=t.state["total"])"""


@pytest.mark.parametrize(
    ("iterate", "finding"),
    [
        (HIDDEN, "DataLoader `data` is within an epoch at the report: after a pause it begins another"),
        (HELD, "`batches` is an iterator, which no checkpoint can hold: it starts again"),
    ],
    ids=["in a loop", "in a variable"],
)
def test_a_loader_within_an_epoch_is_named_once(check: Check, iterate: str, finding: str) -> None:
    assert only(check(source=WITHIN.replace("ITERATE", iterate)))[:2] == (Kind.DATA, finding)
