"""Small programs, a model and a loss, that keep state in all the ways that Python offers; for the random tests.

A program is generated from text, so each copy of it has classes, globals and closures of its own: what a member
would have in a process of its own. `HOLDERS` is the table of ways to keep state, `FREEZES` of ways to freeze
parameters.
"""

import sys
from collections.abc import Callable
from dataclasses import dataclass
from textwrap import indent
from types import ModuleType
from typing import Any

import torch
from torch import nn

WIDTH, CLASSES = 4, 3


@dataclass(frozen=True, slots=True)
class Holder:
    """A way to remember: texts with `{C}` for the class that remembers.

    Attributes:
        tick: sets n; `value` is a tensor that has been computed.
        init: in the constructor.
        level: in the class.
        top: before the class.
    """

    tick: str
    init: str = ""
    level: str = ""
    top: str = ""


HOLDERS = {
    "nothing": Holder("n = 0"),
    "attribute": Holder("self.calls += 1; n = self.calls", "self.calls = 0"),
    "class": Holder("type(self).calls += 1; n = self.calls", level="calls = 0"),
    "class by name": Holder("{C}.calls += 1; n = {C}.calls", level="calls = 0"),
    "base class": Holder(
        "Base{C}.calls += 1; n = self.calls",
        "self.held = Base{C}()",
        "calls = property(lambda self: self.held.calls)",
        "class Base{C}:\n    calls = 0",
    ),
    "global": Holder("global COUNT{C}; COUNT{C} += 1; n = COUNT{C}", top="COUNT{C} = 0"),
    "global that comes later": Holder(
        "globals().setdefault('LATE{C}', [])\nLATE{C}.append(0); n = len(LATE{C})", top="LATE{C} = []"
    ),
    "module": Holder("state{C}.n += 1; n = state{C}.n", top="state{C} = ModuleType('kept'); state{C}.n = 0"),
    "closure": Holder(
        "n = tick{C}()",
        top="def make{C}():\n    n = 0\n    def tick():\n        nonlocal n\n        n += 1\n        return n\n"
        "    return tick\ntick{C} = make{C}()",
    ),
    "method of another": Holder(
        "n = self.tick()",
        "self.tick = Counts{C}().tick",
        top="class Counts{C}:\n    def __init__(self):\n        self.n = 0\n    def tick(self):\n        self.n += 1\n"
        "        return self.n",
    ),
    "list": Holder("self.kept.append(n0 := len(self.kept)); n = n0 + 1", "self.kept = []"),
    "global list": Holder("KEPT{C}.append(0); n = len(KEPT{C})", top="KEPT{C} = []"),
    "class list": Holder("self.kept.append(0); n = len(self.kept)", level="kept = []"),
    "number in a list": Holder("self.kept[0] += 1; n = self.kept[0]", "self.kept = [0]"),
    "dict": Holder("self.kept['n'] = n = self.kept.get('n', 0) + 1", "self.kept = {}"),
    "nested": Holder(
        "self.kept['a'][0]['n'] += 1; n = self.kept['a'][0]['n']", "self.kept = {'a': ({'n': 0},)}"
    ),
    "extra state": Holder(
        "self.calls += 1; n = self.calls",
        "self.calls = 0",
        "def get_extra_state(self):\n    return {'calls': self.calls}\n"
        "def set_extra_state(self, state):\n    self.calls = state['calls']",
    ),
    "values of all kinds": Holder(
        "n = self.kept['n'] + 1\nself.kept = {'n': n, (1, 'a'): [True, None, 1.5j], 'set': {n, frozenset((n,))}, "
        "'last': deque(['x', b'y'], maxlen=2), 'array': numpy.full((2, 3), n), 'scalar': numpy.float32(n), "
        "'tensor': torch.full((2,), n), 'size': torch.Size((n, 2)), 'type': torch.float64, 'own': self.first}\n"
        "self.first.append(n)\nassert self.kept['own'] is self.first and self.kept['scalar'].dtype == 'float32'\n"
        "assert self.kept['array'].sum() == 6 * self.first[-1]",
        "self.first = []; self.kept = {'n': 0}",
    ),
    "replaced dict": Holder(
        "self.kept = {'n': self.kept['n'] + 1}; n = self.kept['n']", "self.kept = {'n': 0}"
    ),
    "set": Holder("self.kept.add(len(self.kept)); n = len(self.kept)", "self.kept = set()"),
    "deque": Holder("self.kept.append(0); n = len(self.kept)", "self.kept = deque(maxlen=6)"),
    "slots": Holder(
        "self.kept.n += 1; n = self.kept.n",
        "self.kept = Slots{C}()",
        top="class Slots{C}:\n    __slots__ = ('n',)\n    def __init__(self):\n        self.n = 0",
    ),
    "namespace": Holder("self.kept.n += 1; n = self.kept.n", "self.kept = SimpleNamespace(n=0)"),
    "function attribute": Holder(
        "n = tick{C}()", top="def tick{C}():\n    tick{C}.n += 1\n    return tick{C}.n\ntick{C}.n = 0"
    ),
    "default argument": Holder(
        "n = tick{C}()", top="def tick{C}(held=[]):\n    held.append(0)\n    return len(held)"
    ),
    "partial": Holder(
        "n = self.tick()",
        "self.tick = partial(tick{C}, [0])",
        top="def tick{C}(held):\n    held[0] += 1\n    return held[0]",
    ),
    "tensor": Holder("self.kept += 1; n = int(self.kept)", "self.kept = torch.zeros(())"),
    "global tensor": Holder("KEPT{C}.add_(1); n = int(KEPT{C})", top="KEPT{C} = torch.zeros(())"),
    "replaced tensor": Holder("self.kept = self.kept + 1; n = int(self.kept)", "self.kept = torch.zeros(())"),
    "running sum": Holder("self.total += 0.7; n = int(self.total)", "self.total = 0.0"),
    "random": Holder("n = self.draws.randrange(8)", "self.draws = random.Random(7)"),
    "global random": Holder("n = DRAWS{C}.randrange(8)", top="DRAWS{C} = random.Random(7)"),
    "torch generator": Holder(
        "n = int(torch.randint(8, (), generator=DRAWS{C}))", top="DRAWS{C} = torch.Generator().manual_seed(5)"
    ),
    "numpy generator": Holder("n = int(DRAWS{C}.integers(8))", top="DRAWS{C} = numpy.random.default_rng(3)"),
    "count": Holder("n = next(self.ids)", "self.ids = itertools.count(1)"),
    "global count": Holder("n = next(IDS{C})", top="IDS{C} = itertools.count(1)"),
    "iterator": Holder("n = next(IDS{C})", top="IDS{C} = iter(range(1, 1000))"),
    "generator": Holder(
        "n = next(IDS{C})",
        top="def ids{C}():\n    n = 0\n    while True:\n        n += 1\n        yield n\nIDS{C} = ids{C}()",
    ),
    "list that comes later": Holder(
        "self.calls += 1\nif self.calls > 2: self.kept = [*self.kept, 0]\nn = len(self.kept)",
        "self.calls = 0; self.kept = []",
    ),
    "list made at a call": Holder(
        "if not hasattr(self, 'kept'): self.kept = []\nself.kept.append(0); n = len(self.kept)"
    ),
    "flag": Holder("n = 9 if self.seen else 0; self.seen = True", "self.seen = False"),
    "cache": Holder(
        "if tuple(value.shape) not in self.kept: self.kept[tuple(value.shape)] = torch.ones(())\nn = len(self.kept)",
        "self.kept = {}",
    ),
    "of the member": Holder(
        "self.total += float(value.detach().abs().mean()); n = int(self.total)", "self.total = 0.0"
    ),
    "losses": Holder(
        "KEPT{C}.append(float(value.detach().abs().mean())); n = int(sum(KEPT{C}))", top="KEPT{C} = []"
    ),
}
EFFECTS = {"late": "1.0 if n < 4 else 0.5", "now": "1.0 + 0.1 * n", "none": "1.0"}
SET = {"call": "self.one.weight.requires_grad_({})", "set": "self.one.weight.requires_grad = {}"}
FREEZES = {
    "never": ("", ""),
    "from the start": ("self.one.weight.requires_grad = False", ""),
    **{
        f"{what} at call {at}, {how}": (
            f"self.steps = 0\nself.one.weight.requires_grad = {not to}",
            f"self.steps += 1\nif self.steps == {at}: {text.format(to)}",
        )
        for how, text in SET.items()
        for what, to in (("frozen", False), ("thawed", True))
        for at in (1, 2, 3, 5)
    },
    "every other call": (
        "self.steps = 0",
        "self.steps += 1\nself.one.weight.requires_grad = self.steps % 2 == 0",
    ),
    "thawed by the forward pass": (
        "self.steps = 0",
        "self.steps += 1\nself.one.weight.requires_grad = self.steps >= 4",
    ),
}
PROGRAM = """
import itertools, random, numpy, torch
from collections import deque
from functools import partial
from types import ModuleType, SimpleNamespace
from torch import nn
from torch.nn import functional
{tops}
class Net(nn.Module):
{net_level}
    def __init__(self):
        super().__init__()
        self.one, self.two = nn.Linear({width}, 5).double(), nn.Linear(5, {classes}).double()
{net_init}
    def forward(self, x):
{freeze}
        value = torch.tanh(self.one(x))
{net_tick}
        return self.two(value) * ({net_effect})
class Loss:
{loss_level}
    def __init__(self):
        self.beta = 1.0
{loss_init}
    def __call__(self, model, batch):
        value = functional.cross_entropy(model(batch[0]), batch[1])
{loss_tick}
        return value * ({loss_effect}) * self.beta
def plain(model, batch):
    return functional.cross_entropy(model(batch[0]), batch[1])
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Program:
    """What a program remembers, where, and with what effect."""

    net: str = "nothing"
    net_effect: str = "none"
    loss: str = "nothing"
    loss_effect: str = "none"
    freeze: str = "never"

    def world(self) -> "World":
        """A copy of the program that shares nothing with another copy."""
        parts: dict[str, str] = {"width": str(WIDTH), "classes": str(CLASSES), "tops": ""}
        for name, kind in (("net", self.net), ("loss", self.loss)):
            holder, of = HOLDERS[kind], name.title()
            parts["tops"] += holder.top.replace("{C}", of) + "\n"
            for part, text, deep in (
                ("level", holder.level or "pass", 4),
                ("init", holder.init or "pass", 8),
                ("tick", holder.tick, 8),
            ):
                parts[f"{name}_{part}"] = indent(text.replace("{C}", of), " " * deep)
        begin, each = FREEZES[self.freeze]
        parts["net_init"] += "\n" + indent(begin, " " * 8)
        parts["freeze"] = indent(each or "pass", " " * 8)
        parts |= {"net_effect": EFFECTS[self.net_effect], "loss_effect": EFFECTS[self.loss_effect]}
        made = ModuleType("program")
        sys.modules["program"] = made  # like the user's module
        exec(compile(PROGRAM.format(**parts), "program.py", "exec"), vars(made))
        return World(made.Net, made.Loss(), made.plain)


@dataclass(slots=True)
class World:
    """A running program."""

    net: Callable[[], nn.Module]
    loss: Any
    plain: Callable[..., torch.Tensor]


def data(rows: int) -> tuple[torch.Tensor, torch.Tensor]:
    generator = torch.Generator().manual_seed(11)
    return (
        torch.randn(rows, WIDTH, generator=generator, dtype=torch.float64),
        torch.randint(CLASSES, (rows,), generator=generator),
    )
