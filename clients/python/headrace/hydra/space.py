"""Hydra's overrides as a search space, and the arguments with which a trial gets its part of it.

| override | parameter |
| --- | --- |
| `interval(a, b)` | float from a to b; `int(interval(a, b))` a whole number |
| `range(a, b, step)` | whole numbers or a grid of floats, without b, as Hydra defines it |
| `a,b,c`, `choice(…)`, `glob(…)` | categorical; of one choice: fixed |
| `tag(log, …)` | of an interval or a range: uniform in the logarithm |
| anything else | fixed, passed on as it is written |
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from hydra.core.override_parser.types import (
    IntervalSweep,
    Override,
    Quote,
    QuotedString,
    RangeSweep,
    Transformer,
)
from hydra.core.override_parser.types import Sweep as HydraSweep

from headrace.errors import InvalidFieldError
from headrace.spec.names import PARAMETER
from headrace.spec.problems import Problem
from headrace.spec.template import RESERVED

_LOG: Final = "log"
_WORD: Final = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_NO_TEXTS: Final = ("true", "false", "null", "nan", "inf")
_MOST_VALUES: Final = 10_000
"""The longest range that is enumerated: a longer one is a slip of the pen, such as a step of 1e-9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a command line searches over, and what it fixes."""

    space: Mapping[str, Mapping[str, Any]]
    """The parameters, as in a study file."""
    keys: Mapping[str, str]
    """The override's key of each parameter, such as `+db/engine` of `db.engine`."""
    fixed: tuple[str, ...] = field(default=())
    """The overrides that every trial gets, as they were written."""

    def arguments(self) -> list[str]:
        """The arguments of a command line: `{name}` stands for a parameter's value."""
        return [*map(escaped, self.fixed), *(f"{key}={{{name}}}" for name, key in self.keys.items())]

    def overrides(self, params: Mapping[str, object]) -> list[str]:
        """The overrides of one configuration."""
        return [*self.fixed, *(f"{key}={written(params[name])}" for name, key in self.keys.items())]


def escaped(text: str) -> str:
    """A text of a command line that is no placeholder."""
    return text.replace("{", "{{").replace("}", "}}")


def written(value: object) -> str:
    """A parameter's value as a command line has it."""
    return str(value).lower() if isinstance(value, bool) else str(value)


def sweep_of(overrides: Iterable[Override]) -> Sweep:
    """Reads parsed overrides; of several with one key the last one counts.

    Raises `InvalidFieldError` with every override that cannot be searched over, and if there is none to search over.
    """
    space: dict[str, Mapping[str, Any]] = {}
    keys: dict[str, str] = {}
    fixed: list[str] = []
    problems: list[Problem] = []
    for override in {one.get_key_element(): one for one in overrides}.values():
        line, key = override.input_line or "", override.get_key_element()
        if not override.is_sweep_override():
            fixed.append(line)
            continue
        name = _name(override)
        found = list(_problems(override, line, name, keys))
        if not found:
            domain = _domain(override)
            if domain is None:
                fixed.append(f"{key}={_text(next(override.sweep_iterator()))}")
                continue
            if isinstance(domain, Problem):
                found = [domain]
            else:
                space[name], keys[name] = domain, key
        problems += found
    if not (space or problems):
        problems.append(
            Problem(
                loc=("overrides",),
                value=" ".join(fixed),
                message="have nothing to search over",
                remedy="Write a range, as in 'lr=tag(log,interval(1e-4,1e-1))', or choices, as in optimizer=sgd,adam.",
            )
        )
    if problems:
        raise InvalidFieldError([problem.violation() for problem in problems])
    return Sweep(space=space, keys=keys, fixed=tuple(fixed))


def _name(override: Override) -> str:
    """The parameter's name: `model.lr` of `+model.lr`, `db.engine` of `db/engine`, `cfg.seed` of `seed`, because
    `{seed}` in a command is the trial's own.
    """
    name = (
        override.key_or_group if override.package is None else f"{override.key_or_group}.{override.package}"
    )
    name = name.replace("/", ".")
    return f"cfg.{name}" if name in RESERVED else name


def _problems(override: Override, line: str, name: str, keys: Mapping[str, str]) -> Iterator[Problem]:
    if override.is_hydra_override():
        yield Problem(
            loc=(override.key_or_group,),
            value=line,
            message="is a setting of Hydra, which is the same for all trials",
            remedy="Give it one value.",
        )
    elif (problem := PARAMETER.problem(name, name)) is not None:
        yield problem
    elif name in keys:
        yield Problem(
            loc=(name,),
            value=line,
            message=f"has the same name in the study as {keys[name]}",
            remedy="Search over one of the two.",
        )
    value = override.value()
    tags = value.tags if isinstance(value, HydraSweep) else set()
    for tag in sorted(tags - {_LOG}):
        yield Problem(
            loc=(name,),
            value=line,
            message=f"has the tag {tag}, which means nothing here",
            remedy="The only tag is log: tag(log, interval(1e-4, 1e-1)).",
        )
    if _LOG in tags and override.is_choice_sweep():
        yield Problem(
            loc=(name,),
            value=line,
            message="has the tag log, but choices have no order",
            remedy="Write an interval, or leave the tag out.",
        )


def _domain(override: Override) -> Mapping[str, Any] | Problem | None:
    """The domain; None for a single value."""
    value = override.value()
    if isinstance(value, IntervalSweep):
        return _interval(value)
    if isinstance(value, RangeSweep):
        return _range(value, override)
    return _choices(override)


def _interval(value: IntervalSweep) -> Mapping[str, Any]:
    whole = isinstance(value.start, int) and isinstance(value.end, int)
    log = {"log": True} if _LOG in value.tags else {}
    return {"type": "int" if whole else "float", "low": value.start, "high": value.end, **log}


def _range(value: RangeSweep, override: Override) -> Mapping[str, Any] | Problem | None:
    """A grid. Hydra's range ends before its stop."""
    points: list[int | float] = []
    if value.step:
        for point in value.range():
            points.append(point)
            if len(points) > _MOST_VALUES:
                break
    if not points or len(points) > _MOST_VALUES:
        return Problem(
            loc=(_name(override),),
            value=override.input_line or "",
            message=f"has more than {_MOST_VALUES} values" if points else "has no values",
            remedy="Write range(start, stop, step), where stop itself is left out; or interval(low, high).",
        )
    if len(points) == 1:
        return None
    low, high = min(points[0], points[-1]), max(points[0], points[-1])
    whole = all(isinstance(point, int) for point in points)
    step = abs(value.step)
    if _LOG in value.tags:  # with the grid of a step of 1, which whole numbers have anyway
        grid = {"log": True} if whole and step == 1 else {"log": True, "step": step}
    else:
        grid = {"step": step}
    return {"type": "int" if whole else "float", "low": low, "high": high, **grid}


def _choices(override: Override) -> Mapping[str, Any] | Problem | None:
    """The choices, each as the number, the truth value or the text that Hydra reads back from a command line."""
    choices = {_text(value): value for value in override.sweep_iterator()}
    if not choices:
        return Problem(
            loc=(_name(override),),
            value=override.input_line or "",
            message="has no choices",
            remedy="Name them, or look at the names that the glob is to match.",
        )
    if len(choices) == 1:
        return None
    return {
        "type": "categorical",
        "values": [
            value if isinstance(value, bool | int | float) and written(value) == text.lower() else text
            for text, value in choices.items()
        ],
    }


def _text(value: Any) -> str:
    """A value in Hydra's notation. A text is quoted unless it is a plain word: Hydra reads `1` as a number."""
    if isinstance(value, str) and (not _WORD.fullmatch(value) or value.lower() in _NO_TEXTS):
        return QuotedString(value, Quote.single).with_quotes()
    return Transformer.str(value)
