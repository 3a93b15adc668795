"""Scripts that keep state in each kind of place that Python has. It may be tracked or not, and be read by the
curve, by the end or by nothing.

`P` stands for the variable. A holder is changed in each step, read as a number, and saved and loaded by its
script.
"""

import re
from dataclasses import dataclass
from enum import StrEnum
from itertools import product

IMPORTS = """
import enum, functools, itertools, random, threading, weakref
from collections import Counter, OrderedDict, defaultdict, deque
from contextvars import ContextVar
from dataclasses import dataclass
import numpy
from headrace import trial

class Mode(enum.Enum):
    COLD = 1
    HOT = 2

class Key:
    pass

class Box:
    def __init__(self, n):
        self.n = n

class Book(dict):
    seen = 0

@dataclass(slots=True)
class Slotted:
    n: int = 0

KEY = Key()
BOXES = [Box(n) for n in range(9)]

def one(): return 1
def two(): return 2

def closing():
    n = 0
    def count(k):
        nonlocal n
        n += k
        return n
    return count

def generating():
    n = 0
    while True:
        n += 1
        yield n

def tallied():
    pass

@functools.lru_cache
def cached(k):
    return LATEST[0]

LATEST = [0]
"""


class Place(StrEnum):
    """Where the variable is."""

    LOCAL = "local"
    MODULE = "module"
    CLASS = "class"
    INSTANCE = "instance"


class Read(StrEnum):
    """What depends on it."""

    CURVE = "curve"
    END = "end"
    NOTHING = "nothing"


@dataclass(frozen=True, kw_only=True)
class Holder:
    """One kind of state: its first value, what a step does with it, its number, and how it is saved and loaded."""

    first: str
    change: str
    number: str
    saved: str
    load: str
    # What the check's findings call it, after the variable's name.
    named: str = ""


def _numbered(first: str, change: str, number: str) -> Holder:
    """A holder that is fully described by its number."""
    return Holder(first=first, change=change, number=number, saved=number, load=f"{number} = S")


HOLDERS = {
    "int": _numbered("0", "P += step", "P"),
    "enum": Holder(
        first="Mode.COLD",
        change="P = Mode(3 - P.value)",
        number="P.value",
        saved="P.value",
        load="P = Mode(S)",
    ),
    "function": Holder(
        first="one",
        change="P = two if P is one else one",
        number="P()",
        saved="P.__name__",
        load="P = globals()[S]",
    ),
    "weak keys": _numbered("weakref.WeakKeyDictionary({KEY: 0})", "P[KEY] += 1", "P[KEY]"),
    "weak values": Holder(
        first="weakref.WeakValueDictionary(a=BOXES[0])",
        change="P['a'] = BOXES[min(8, P['a'].n + 1)]",
        number="P['a'].n",
        saved="P['a'].n",
        load="P['a'] = BOXES[S]",
        named="",
    ),
    "deque": Holder(
        first="deque([0], 3)",
        change="P.append(P[-1] + 1)",
        number="sum(P)",
        saved="list(P)",
        load="P = deque(S, 3)",
    ),
    "list of enums": Holder(
        first="[Mode.COLD]",
        change="P.append(Mode.HOT)",
        number="len(P)",
        saved="len(P)",
        load="P.extend([Mode.HOT] * (S - 1))",
    ),
    "defaultdict": _numbered("defaultdict(int)", "P['a'] += 1", "P['a']"),
    "Counter": _numbered("Counter()", "P.update('a')", "P['a']"),
    "dict by objects": _numbered("{KEY: 0}", "P[KEY] += 1", "P[KEY]"),
    "dict with attributes": _numbered("Book()", "P.seen += 1", "P.seen"),
    "set": Holder(
        first="{0}", change="P.add(len(P))", number="len(P)", saved="len(P)", load="P.update(range(S))"
    ),
    "count": Holder(
        first="itertools.count()",
        change="next(P)",
        number="int(repr(P)[6:-1])",
        saved="int(repr(P)[6:-1])",
        load="P = itertools.count(S)",
    ),
    "generator": Holder(
        first="generating()",
        change="next(P)",
        number="P.gi_frame.f_locals.get('n', 0)",
        saved="P.gi_frame.f_locals.get('n', 0)",
        load="[next(P) for _ in range(S)]",
    ),
    "closure": Holder(
        first="closing()", change="P(step)", number="P(0)", saved="P(0)", load="P(S)", named="n"
    ),
    "partial": _numbered("functools.partial(dict, n=0)", "P.keywords['n'] += 1", "P.keywords['n']"),
    "attribute of a function": Holder(
        first="tallied; P.n = 0",
        change="P.n += 1",
        number="P.n",
        saved="P.n",
        load="P.n = S",
        named="tallied.n",
    ),
    "context variable": Holder(
        first="ContextVar('held', default=0)",
        change="P.set(P.get() + 1)",
        number="P.get()",
        saved="P.get()",
        load="P.set(S)",
    ),
    "thread": _numbered("threading.local(); P.n = 0", "P.n += 1", "P.n"),
    "slots": _numbered("Slotted()", "P.n += 1", "P.n"),
    "array": Holder(
        first="numpy.zeros(2)",
        change="P += step",
        number="float(P.sum())",
        saved="P.copy()",
        load="P[:] = S",
    ),
    "numpy generator": Holder(
        first="numpy.random.default_rng(1)",
        change="P.random()",
        number="float(P.bit_generator.state['state']['state'] % 1009)",
        saved="repr(P.bit_generator.state)",
        load="P.bit_generator.state = eval(S)",
    ),
    "random": Holder(
        first="random.Random(1)",
        change="P.random()",
        number="float(P.getstate()[1][-1])",
        saved="repr(P.getstate())",
        load="P.setstate(eval(S))",
    ),
    "partial's closure": Holder(
        first="functools.partial(closing())",
        change="P(step)",
        number="P(0)",
        saved="P(0)",
        load="P(S)",
        named="n",
    ),
    "cached function": Holder(
        first="cached",
        change="LATEST[0] = step; P(1)",
        number="P(1)",
        saved="[P(1), *LATEST]",
        load="LATEST[0] = S[0]; P(1); LATEST[0] = S[1]",
        named="cached",
    ),
    "iterator": Holder(
        first="iter(range(99))",
        change="next(P)",
        number="99 - P.__length_hint__()",
        saved="99 - P.__length_hint__()",
        load="P = iter(range(S, 99))",
    ),
}
_PATHS = {Place.LOCAL: "held", Place.MODULE: "held", Place.CLASS: "Meter.held", Place.INSTANCE: "meter.held"}
CASES = tuple(product(HOLDERS, Place))


def path_of(kind: str, place: Place) -> str:
    """The start of the name that a finding uses for the variable."""
    return HOLDERS[kind].named or _PATHS[place]


def script(kind: str, place: Place, read: Read, *, tracked: bool) -> str:
    """A script of four steps that keeps state in such a holder."""
    holder, path = HOLDERS[kind], _PATHS[place]
    first, change, number, saved = (
        re.sub(r"\bP\b", path, text) for text in (holder.first, holder.change, holder.number, holder.saved)
    )
    load = re.sub(r"\bS\b", "t.state['held']", re.sub(r"\bP\b", path, holder.load))
    setup = f"{path} = {first}"
    lines = [IMPORTS]
    if place in (Place.CLASS, Place.INSTANCE):
        lines += ["class Meter:", "    pass"]
    if place in (Place.CLASS, Place.MODULE):
        lines += [setup]
    lines += ["def train(t):"]
    if place is Place.MODULE:
        lines += ["    global held"]
    if place is Place.INSTANCE:
        lines += ["    meter = Meter()"]
    if place in (Place.INSTANCE, Place.LOCAL):
        lines += [f"    {setup}"]
    if tracked:
        lines += ["    if 'held' in t.state:", f"        {load}"]
    lines += ["    t.state.setdefault('v', 1.0)", "    for step in t.steps():"]
    if read is Read.END:
        lines += [f"        if step > 2 and int({number}) % 2: break"]
    lines += [f"        {change}", "        t.state['v'] *= 0.9"]
    if tracked:
        lines += [f"        t.state['held'] = {saved}"]
    loss = f"t.state['v'] + {number}" if read is Read.CURVE else "t.state['v']"
    lines += [f"        t.report(loss={loss})", "trial.main(train, steps=4)", ""]
    return "\n".join(lines)
