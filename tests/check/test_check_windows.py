"""State that matters only for some steps, in places outside every state_dict() and plain variable: it gets a
restore there."""

from collections.abc import Callable

import pytest

from headrace.check import CheckReport, Kind, render
from headrace.check.report import Verdict

Check = Callable[..., CheckReport]

WINDOW = """
BEFORE
from headrace import trial

def train(t):
    MADE
    t.state.setdefault("v", 1.0)
    for step in t.steps():
        if step == 17: SET
        if step == 21: t.state["v"] += READ
        if step == 23: RESET
        t.state["v"] *= 0.99
        t.report(loss=t.state["v"])

trial.main(train, steps=45)
"""
"""Set in step 17, read in step 21 and reset in step 23: a pause after steps 17 to 20 loses it, and no other pause
does."""
PHASE = "SET=phase.boost = 2.0", "READ=phase.boost", "RESET=phase.boost = 1.0", "MADE=phase = Phase()"
SLOTS = (
    "BEFORE=from dataclasses import dataclass\n@dataclass(slots=True)\nclass Phase:\n    boost: float = 1.0"
)
BASE = (
    "BEFORE=class Base:\n    __slots__ = ('boost',)\nclass Phase(Base):\n    boosts = 1\n"
    "    def __init__(self): self.boost = 1.0"
)
ATTRS = "BEFORE=import attrs\n@attrs.define\nclass Phase:\n    boost: float = 1.0"
MSGSPEC = "BEFORE=import msgspec\nclass Phase(msgspec.Struct):\n    boost: float = 1.0"
PARSED = "BEFORE=from argparse import Namespace\ndef Phase(): return Namespace(boost=1.0)"
LOCAL = "BEFORE=import threading\ndef Phase(): phase = threading.local(); phase.boost = 1.0; return phase"
NAMED = "variable `phase.boost` is 2.0 when saved, and 1.0 after the restore"
ENVIRON = (
    "BEFORE=import os",
    "SET=os.environ['HOT'] = '1'",
    "READ=float(os.environ.get('HOT', 0))",
    "RESET=os.environ.pop('HOT', None)",
)
CONTEXT = (
    "BEFORE=from contextvars import ContextVar\nHOT = ContextVar('hot', default=0)",
    "SET=HOT.set(1)",
    "READ=HOT.get()",
    "RESET=HOT.set(0)",
)
COUNT = (
    "BEFORE=import itertools",
    "MADE=count = None",
    "SET=count = itertools.count(5)",
    "READ=next(count) if count else 0",
    "RESET=count = None",
)
OBJECT = (
    "BEFORE=class Boost:\n    def __call__(self): return 2.0",
    "MADE=boost = None",
    "SET=boost = Boost()",
    "READ=boost() if boost else 1.0",
    "RESET=boost = None",
)
CHOICE = (
    "BEFORE=import enum\nclass Phase(enum.Enum):\n    MAIN = 1\nPhase.MAIN.boost = 0.0",
    "SET=Phase.MAIN.boost = 2.0",
    "READ=Phase.MAIN.boost",
    "RESET=Phase.MAIN.boost = 0.0",
)
ARRAY = (
    "BEFORE=from array import array\nboost = array('d', [0.0])",
    "SET=boost[0] = 2.0",
    "READ=boost[0]",
    "RESET=boost[0] = 0.0",
)
WINDOWS = {
    "enum": (CHOICE, "variable `Phase.MAIN.boost` is 2.0 when saved, and 0.0 after the restore"),
    "array": (ARRAY, "`boost` is not saved: after the restore it is as it was before the loop"),
    "slots": ((SLOTS, *PHASE), NAMED),
    "slots of a base class": ((BASE, *PHASE), NAMED),
    "attrs": ((ATTRS, *PHASE), NAMED),
    "msgspec": ((MSGSPEC, *PHASE), NAMED),
    "arguments": ((PARSED, *PHASE), NAMED),
    "threading.local": ((LOCAL, *PHASE), NAMED),
    "ContextVar": (CONTEXT, "variable `HOT` is 1 when saved, and None after the restore"),
    "environment": (ENVIRON, "`os.environ['HOT']` changes in the loop, and a restore undoes that"),
    "count": (COUNT, "variable `count` is count(5) when saved, and None after the restore"),
    "object": (OBJECT, "`boost` holds an object when saved, which no checkpoint holds, and is None after"),
}


def filled(source: str, parts: tuple[str, ...]) -> str:
    for part in ("BEFORE=", "MADE=pass", *parts)[::-1]:
        name, _, text = part.partition("=")
        source = source.replace(name, text)
    return source


@pytest.mark.cases(4)
@pytest.mark.parametrize("window", WINDOWS)
def test_what_is_set_for_some_steps_is_found_wherever_it_is(check: Check, window: str) -> None:
    parts, finding = WINDOWS[window]
    report = check(source=filled(WINDOW, parts), steps=None)
    assert report.verdict is Verdict.FAILED, render(report)
    (missing,) = report.missing
    assert missing.finding.startswith(finding), render(report)
    assert 17 <= missing.step <= 22


TORCH = """
import torch
from headrace import trial

def train(t):
    torch.set_num_threads(1)
    inputs = torch.arange(48.0).reshape(16, 3).sin()
    norm, drop = torch.nn.BatchNorm1d(4), torch.nn.Dropout(0.1)
    model = torch.nn.Sequential(torch.nn.Linear(3, 4), norm, drop, torch.nn.Linear(4, 1))
    opt = torch.optim.SGD(model.parameters(), lr=0.05)
    opt.scale = 1.0
    t.track(model=model, optimizer=opt)
    for step in t.steps():
        BODY
        opt.zero_grad()
        loss = opt.scale * model(inputs).square().mean()
        loss.backward()
        opt.step()
        t.report(loss=loss)

trial.main(train, steps=45)
"""
MODE = "if step == 17: norm.eval()\n        if step == 23: norm.train()"
HALVED = "model[3].register_forward_hook(lambda module, args, out: out / 2)"
IN_TORCH = {
    "mode": (
        MODE,
        Kind.MODULE,
        "module `model.1` is in eval mode when saved, and in train mode after the restore",
    ),
    "requires_grad": (
        "if step in (17, 23): model[0].requires_grad_(step == 23)",
        Kind.MODULE,
        "requires_grad of `model.0.weight` and 1 more is False when saved, and True after the restore",
    ),
    "attribute of a module": (
        "if step in (17, 23): drop.p = 0.5 if step == 17 else 0.1",
        Kind.VALUE,
        "variable `drop.p` is 0.5 when saved, and 0.1 after the restore",
    ),
    "attribute of an optimizer": (
        "if step in (17, 23): opt.scale = 2.0 if step == 17 else 1.0",
        Kind.SETTINGS,
        "`opt.scale` is 2.0 when saved, and 1.0 after the restore",
    ),
    "hook": (
        f"if step == 17: hook = {HALVED}\n        if step == 23 and t.resumed == 0: hook.remove()",
        Kind.MODULE,
        "hooks of `model.3` are 1 when saved, and 0 after the restore",
    ),
}
UNTRACKED = (
    (", optimizer=opt", ""),
    ("BODY", "if step in (17, 23): opt.param_groups[0]['lr'] *= 2 if step == 17 else 0.5"),
)


@pytest.mark.cases(2)
@pytest.mark.parametrize("window", IN_TORCH)
def test_what_no_state_dict_holds_for_some_steps_is_found(check: Check, window: str) -> None:
    body, kind, finding = IN_TORCH[window]
    report = check(("BODY", body), source=TORCH, steps=None)
    assert report.verdict is Verdict.FAILED, render(report)
    (missing,) = report.missing
    assert (missing.kind, 17 <= missing.step <= 22) == (kind, True)
    assert missing.finding.startswith(finding)


def test_a_learning_rate_of_some_steps_in_an_optimizer_that_is_not_tracked_is_found(check: Check) -> None:
    report = check(*UNTRACKED, source=TORCH, steps=None)
    (missing,) = report.missing
    assert missing.finding.startswith("SGD `opt` is not tracked"), render(report)


SOUND = {
    "modes in each step": "model.train(); norm.train(not 17 <= step < 23)",
    "evaluation at the end of each step": "model.eval(); model(inputs); model.train()",
    "frozen by the step's number": "model[0].requires_grad_(not 17 <= step < 23)",
    "an average": "t.state['mean'] = 0.9 * t.state.get('mean', 0.0) + 0.1 * model[3].bias.item()",
    "a cache": "cached = __import__('functools').lru_cache(lambda n: n * n); cached(step)",
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("body", SOUND)
def test_what_each_step_sets_by_itself_passes(check: Check, body: str) -> None:
    report = check(("BODY", SOUND[body]), source=TORCH, steps=None)
    assert report.verdict is Verdict.PASSED, render(report)
    assert report.warnings == ()


def test_an_environment_variable_that_a_library_sets_in_the_loop_is_not_blamed(check: Check) -> None:
    parts = ("BEFORE=import os", "SET=os.environ['LAZY'] = '1'", "READ=1.0", "RESET=pass")
    report = check(source=filled(WINDOW, parts), steps=None)
    assert (report.verdict, report.warnings) == (Verdict.PASSED, ()), render(report)


ATTRIBUTE = """
from headrace import trial

class Loss:
    CLASS
    def __call__(self, x):
        BODY
        return x / self.ma

def train(t):
    loss = Loss()
    t.state.setdefault("v", 2.0)
    for step in t.steps():
        t.state["v"] *= 0.9
        t.report(loss=loss(t.state["v"]))

trial.main(train, steps=5)
"""
LATE = {
    "a default of the class": ("ma = 1.0", "self.ma = 0.9 * self.ma + 0.1 * x", "loss.ma"),
    "a default of a base class": ("pass", "self.ma = 0.9 * self.ma + 0.1 * x", "loss.ma"),
    "first set in the loop": ("pass", "self.ma = 0.9 * getattr(self, 'ma', 1.0) + 0.1 * x", "loss.ma"),
    "in slots": ("__slots__ = ('ma',)", "self.ma = 0.9 * getattr(self, 'ma', 1.0) + 0.1 * x", "loss.ma"),
    "set on the class": ("pass", "Loss.ma = 0.9 * getattr(Loss, 'ma', 1.0) + 0.1 * x", "Loss.ma"),
}


@pytest.mark.cases(2)
@pytest.mark.parametrize("where", LATE)
def test_an_attribute_that_a_fresh_object_does_not_have_is_named(check: Check, where: str) -> None:
    of_class, body, name = LATE[where]
    base = (
        ("class Loss:", "class Base:\n    ma = 1.0\n\nclass Loss(Base):")
        if "base" in where
        else ("CLASS", "CLASS")
    )
    report = check(base, ("CLASS", of_class), ("BODY", body), source=ATTRIBUTE)
    (missing,) = report.missing
    assert missing.finding.startswith(f"variable `{name}` is 1."), render(report)
    after = "and 1.0 after the restore" if "default" in where else "which the loop has set"
    assert after in missing.finding
    assert missing.remedy.startswith(
        f'keep it in t.state: `if "ma" in t.state: {name} = t.state["ma"]` before the loop'
    )


STOPPER = """
import math
from headrace import trial

class Stopper:
    best, bad = math.inf, 0
    def over(self, loss):
        self.best, self.bad = (loss, 0) if loss < self.best else (self.best, self.bad + 1)
        return self.bad >= 3

def train(t):
    stop = Stopper()
    t.state.setdefault("v", 1.0)
    for step in t.steps():
        t.state["v"] *= 0.9
        if stop.over(t.state["v"]):
            t.state["v"] = 0.0
        t.report(loss=t.state["v"])

trial.main(train, steps=5)
"""


def test_a_patience_whose_defaults_are_in_the_class_is_warned_of(check: Check) -> None:
    """With the defaults in `__init__` the check already warned."""
    report = check(source=STOPPER)
    assert report.passed, render(report)
    (found,) = report.warnings
    assert found.remedy.startswith(
        'keep it in t.state: `if "best" in t.state: stop.best = t.state["best"]` before the loop'
    )


CACHED = """self.ma = 1.0
    @functools.cached_property
    def half(self):
        return 0.5"""


def test_a_cached_property_is_not_warned_of(check: Check) -> None:
    changes = ("CLASS", "def __init__(self): " + CACHED), ("BODY", "x = x * self.half")
    report = check(*changes, ("from headrace", "import functools\nfrom headrace"), source=ATTRIBUTE)
    assert (report.verdict, report.warnings) == (Verdict.PASSED, ()), render(report)


WITHIN = """
from headrace import trial

class Buffer:
    total = 0.0

def train(t):
    buffer = Buffer()
    t.state.setdefault("v", 1.0)
    for step in t.steps():
        if 21 <= step <= 23: buffer.total += 0.5
        if step == 24: t.state["v"] += buffer.total; buffer.total = 0.0
        t.report(loss=t.state["v"])

trial.main(train, steps=45)
"""


def test_an_attribute_over_a_default_of_the_class_for_some_steps_is_found(check: Check) -> None:
    report = check(source=WITHIN, steps=None)
    (missing,) = report.missing
    assert "variable `buffer.total` is " in missing.finding, render(report)
