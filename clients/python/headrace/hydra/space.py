"""Hydra's overrides as a search space, and the arguments with which a trial gets its part of it.

| override | parameter |
| --- | --- |
| `interval(a, b)` | float from a to b; `int(interval(a, b))` a whole number |
| `range(a, b, step)` | whole numbers or a grid of floats, without b, as Hydra defines it |
| `a,b,c`, `choice(…)`, `glob(…)` | categorical; of one choice: fixed |
| `tag(log, …)` | of an interval, or of a range with a step of 1: uniform in the logarithm |
| anything else | fixed, passed on as it is written |
"""

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
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

Domain = Mapping[str, Any]
_LOG: Final = "log"
_WORD: Final = re.compile(r"[A-Za-z_][\w./-]*", re.ASCII)
_NOT_TEXT: Final = ("true", "false", "null", "nan", "inf")
_MOST_VALUES: Final = 10_000
"""The longest range that is enumerated: a longer one is a typo, such as a step of 1e-9."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Sweep:
    """What a command line searches over, and what it fixes."""

    space: Mapping[str, Domain]
    """The parameters, as in a study file."""
    keys: Mapping[str, str]
    """The override's key of each parameter, such as `+db/engine` of `db.engine`."""
    args: tuple[str, ...]
    """The overrides of a trial, in their order, as arguments of a command template."""


def sweep_of(overrides: Iterable[Override]) -> Sweep:
    """Reads parsed overrides; of several that set one key the last one counts.

    Raises `InvalidFieldError` with every override that cannot be searched over.
    """
    space: dict[str, Domain] = {}
    keys: dict[str, str] = {}
    args: list[str] = []
    problems: list[Problem] = []
    for override in {(one.is_delete(), one.key_or_group, one.package): one for one in overrides}.values():
        key, line = override.get_key_element(), override.input_line or ""
        if not override.is_sweep_override():
            args.append(escaped(line))
            continue
        name = _name(override)
        if found := list(_problems(override, name, keys)):
            problems += found
            continue
        domain = _domain(override)
        if isinstance(domain, str):
            args.append(escaped(f"{key}={domain}"))
            continue
        space[name], keys[name] = domain, key
        args.append(f"{key}={{{name}}}")
    if problems:
        raise InvalidFieldError([problem.violation() for problem in problems])
    return Sweep(space=space, keys=keys, args=tuple(args))


def escaped(text: str) -> str:
    """A text as an argument of a command template, without placeholders."""
    return text.replace("{", "{{").replace("}", "}}")


def _name(override: Override) -> str:
    """The parameter's name: `model.lr` of `+model.lr`, `db.engine` of `db/engine`, and `cfg.seed` of `seed`, because
    `{seed}` in a command is the trial's own.
    """
    name = override.key_or_group.replace("/", ".")
    if override.package is not None:
        name = f"{name}.{override.package}"
    return f"cfg.{name}" if name in RESERVED else name


def _problems(override: Override, name: str, keys: Mapping[str, str]) -> Iterator[Problem]:
    def problem(message: str, remedy: str, loc: str = name) -> Problem:
        return Problem(loc=(loc,), value=override.input_line or "", message=message, remedy=remedy)

    if override.is_hydra_override():
        message = "is a setting of Hydra, which is the same for all trials"
        yield problem(message, "Give it one value.", override.key_or_group)
    elif (wrong := PARAMETER.problem(name, name)) is not None:
        yield wrong
    elif name in keys:
        yield problem(f"has the same name in the study as {keys[name]}", "Search over one of the two.")
    value = override.value()
    tags = value.tags if isinstance(value, HydraSweep) else set()
    for tag in sorted(tags - {_LOG}):
        yield problem(
            f"has the unknown tag {tag}",
            "The only tag is log: tag(log, interval(1e-4, 1e-1)).",
        )
    if _LOG in tags and not isinstance(value, IntervalSweep):
        if not isinstance(value, RangeSweep):
            yield problem(
                "has the tag log, but choices have no order", "Write an interval, or leave the tag out."
            )
        elif not (isinstance(value.start, int) and value.step == 1):
            yield problem(
                "has the tag log, but a grid has even steps",
                "Write an interval, whole numbers with a step of 1, or leave the tag out.",
            )
    if isinstance(value, RangeSweep) and not 0 < len(_points(value)) <= _MOST_VALUES:
        said = f"has more than {_MOST_VALUES} values" if _points(value) else "has no values"
        yield problem(
            said, "Write range(start, stop, step), where stop itself is left out; or interval(low, high)."
        )
    elif override.is_choice_sweep() and not list(override.sweep_iterator()):
        yield problem("has no choices", "Name them, or check the pattern of the glob.")


def _domain(override: Override) -> Domain | str:
    """The domain, or a single value in Hydra's notation."""
    value = override.value()
    log = {"log": True} if isinstance(value, HydraSweep) and _LOG in value.tags else {}
    if isinstance(value, IntervalSweep):
        whole = isinstance(value.start, int) and isinstance(value.end, int)
        return {"type": "int" if whole else "float", "low": value.start, "high": value.end, **log}
    if isinstance(value, RangeSweep):
        points = _points(value)
        if len(points) == 1:
            return _text(points[0])
        ends = sorted((points[0], points[-1]))
        kind = "int" if all(isinstance(point, int) for point in points) else "float"
        return {"type": kind, "low": ends[0], "high": ends[1], **(log or {"step": abs(value.step)})}
    choices = {_text(choice): choice for choice in override.sweep_iterator()}
    if len(choices) == 1:
        return next(iter(choices))
    plain = (bool, int, float)  # anything else is the text that Hydra reads back
    return {
        "type": "categorical",
        "values": [choice if isinstance(choice, plain) else text for text, choice in choices.items()],
    }


def _points(value: RangeSweep) -> list[int | float]:
    """The values of a range, up to one more than is allowed. Shuffling has no meaning for a sampler."""
    points: list[int | float] = []
    if value.step:
        for point in value.range():
            points.append(point)
            if len(points) > _MOST_VALUES:
                break
    return points


def _text(value: Any) -> str:
    """A value in Hydra's notation. A text is quoted unless it is a plain word: Hydra reads `1` as a number."""
    if isinstance(value, str) and (not _WORD.fullmatch(value) or value.lower() in _NOT_TEXT):
        return QuotedString(value, Quote.single).with_quotes()
    return Transformer.str(value)
