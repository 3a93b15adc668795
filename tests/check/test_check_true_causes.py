"""`headrace check` names what makes a resumed process raise, and nothing harmless if only the end moves."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, Kind, render
from headrace.check.failures import explained
from headrace.check.snapshot import SegmentResult

Check = Callable[..., CheckReport]

METER = """
from headrace import trial

class Meter:
    top: list = []

def train(t):
    t.state.setdefault("w", 4.0)
    meter, seen = Meter(), 0
    for step in t.steps():
        seen += 1
        READ
        t.state["w"] -= 0.1 * t.state["w"]
        meter.top.append(t.state["w"])
        t.report(loss=t.state["w"] ** 2)

trial.main(train, steps=4)
"""
DIRECT = "if step > 2: t.state['w'] -= 0.01 * meter.top[0]"
INDIRECT = "copied = meter.top[:]\n        if step > 2: t.state['w'] -= 0.01 * copied[0]"
NOT_BY_A_LOSS = "if t.resumed and step > 2: raise ValueError('no such step')"


def found(report: CheckReport) -> list[tuple[Kind, str]]:
    return [(missing.kind, missing.finding) for missing in report.missing]


def test_the_variable_whose_loss_makes_a_resumed_process_raise_is_the_cause(check: Check) -> None:
    report = check(source=METER.replace("READ", DIRECT).replace("seen += 1", "pass"), steps=4)
    (cause,) = report.missing
    assert cause.finding == "variable `Meter.top` is [3.6] when saved, and [] after the restore"
    assert cause.remedy.startswith('keep it in t.state: `Meter.top = t.state.get("top", [])` before the loop')
    assert "the resumed process fails: IndexError: list index out of range" in cause.evidence
    assert any(DIRECT in line for line in cause.evidence)
    assert "shows when the rest is fixed" not in render(report), "there is no rest"


def test_what_the_line_that_raises_does_not_read_stays_a_warning(check: Check) -> None:
    report = check(source=METER.replace("READ", DIRECT), steps=4)
    assert [missing.variable for missing in report.missing] == ["Meter.top"]
    assert [warning.variable for warning in report.warnings] == ["seen"]


def test_all_that_is_reset_is_named_where_the_line_that_raises_reads_none_of_it(check: Check) -> None:
    report = check(source=METER.replace("READ", INDIRECT), steps=4)
    assert {missing.variable for missing in report.missing} == {"Meter.top", "seen"}
    assert report.warnings == ()


def test_an_error_that_no_loss_explains_is_reported_with_its_line(check: Check) -> None:
    source = METER.replace("READ", NOT_BY_A_LOSS).replace("seen += 1", "pass")
    report = check(source=source.replace('meter.top.append(t.state["w"])', "pass"), steps=4)
    (error,) = report.missing
    assert error.finding == "the resumed process fails: ValueError: no such step"
    assert error.remedy.startswith("see line 12 of script.py, `if t.resumed and step > 2: raise ValueError(")
    assert "shapes" not in error.remedy


@pytest.mark.parametrize(
    ("frame", "error", "step", "remedy"),
    [
        ("load_state_dict", "KeyError: 'w'", 2, "track the same objects, of the same shapes"),
        (
            "train",
            "RuntimeError: size mismatch for 0.weight",
            2,
            "track the same objects, of the same shapes",
        ),
        (
            "train",
            "KeyError: 'w'",
            2,
            "see line 7 of train.py, `load(state)`: what it reads must be in t.state",
        ),
        ("state_dict", "KeyError: 'w'", 0, "see line 7 of train.py, `load(state)`: without a save"),
    ],
    ids=["a load", "a size mismatch", "another line", "a save"],
)
def test_shapes_are_blamed_for_a_load_alone(frame: str, error: str, step: int, remedy: str) -> None:
    trace = f'Traceback (most recent call last):\n  File "train.py", line 7, in {frame}\n    load(state)\n{error}\n'
    failure = SegmentResult(
        attached=True, resume_step=step, reports=(), snapshots=(), error=error, traceback=trace
    )
    (missing,) = explained(failure, (), ())
    assert missing.remedy.startswith(remedy)


ENDS = """
import functools
import torch
from headrace import trial

@functools.lru_cache
def data():
    return torch.arange(20.0).reshape(5, 4).sin()

def train(t):
    torch.set_num_threads(1)
    net = torch.nn.Sequential(torch.nn.Linear(4, 1), torch.nn.Dropout(0.5))
    opt = torch.optim.SGD(net.parameters(), lr=0.1)
    t.track(net=net, opt=opt)
    value, last, rates = 0.0, None, iter([1.0] * 9)
    net.train()
    for step in t.steps():
        FIRST
        opt.zero_grad()
        (net(data()) ** 2).mean().mul(RATE).backward()
        opt.step()
        net.eval()
        with torch.no_grad():
            value = (net(data()) ** 2).mean().item()
        LAST
        t.report(loss=value)
        AFTER

trial.main(train, steps=5)
"""
END = "the script ends by itself after step 3, and a trial that is resumed from that report trains on"


def ends(first: str = "net.train()", last: str = "pass", after: str = "pass", rate: str = "1.0") -> str:
    source = ENDS.replace("FIRST", first).replace("LAST", last).replace("AFTER", after)
    return source.replace("RATE", rate)


@pytest.mark.parametrize("steps", [None, 4])
def test_what_each_step_sets_first_is_not_named_where_the_end_alone_moves(
    check: Check, steps: int | None
) -> None:
    """Neither the mode nor the variables: the report after each restore equals that of a run without a pause."""
    report = check(source=ends(after="if step == 3: break"), steps=steps)
    assert found(report) == [(Kind.END, END)], render(report)
    assert [warning.variable for warning in report.warnings] == ["value"]


def test_what_cannot_be_looked_at_is_not_named_where_the_end_is_explained(check: Check) -> None:
    report = check(source=ends(after="if step == 3: break", rate="next(rates)"), steps=None)
    assert found(report) == [(Kind.END, END)], render(report)


def test_a_mode_that_is_set_once_is_named_beside_the_end(check: Check) -> None:
    source = ends(first="pass", after="if step == 3: break")
    for also_reset in ("@functools.lru_cache\n", "    value, last, rates = 0.0, None, iter([1.0] * 9)\n"):
        assert also_reset in source
        source = source.replace(also_reset, "")
    report = check(source=source, steps=None)
    assert [kind for kind, _ in found(report)] == [Kind.MODULE, Kind.END]
    assert report.missing[0].finding.startswith("module `net`")


def test_a_variable_that_decides_the_end_before_a_step_sets_it_again_is_named(check: Check) -> None:
    """Each report after a restore is equal, and so is the variable at that point."""
    report = check(
        source=ends(first="net.train()\n        if last: break", last="last = step == 3"), steps=None
    )
    assert "last" in [missing.variable for missing in report.missing], render(report)
