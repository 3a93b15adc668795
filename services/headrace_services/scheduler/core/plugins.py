"""Policies and samplers of installed packages, found by their entry points.

    headrace.policies   name → a function (spec, options) → Policy
    headrace.samplers   name → a function (spec, options) → OwnSampler

A package is imported when a study first names a policy or sampler of it. If that fails, an `InvalidFieldError`
names the study's field, the package and the reason. It rejects the study that asks and affects no other one.
"""

from collections.abc import Callable, Mapping
from functools import cache
from importlib.metadata import EntryPoint, entry_points
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation, show_value
from headrace.spec import StudySpec, Value

POLICY: Final = "policy"
SAMPLER: Final = "sampler"
_GROUPS: Final = {POLICY: "headrace.policies", SAMPLER: "headrace.samplers"}
_SHOWN = 8

Factory = Callable[[StudySpec, Mapping[str, Value]], Any]


@cache
def factory(kind: str, name: str) -> Factory:
    """The function that makes the policy or sampler of this name. Raises InvalidFieldError if there is none, if
    several packages have one, or if its package cannot be imported. Once the package is fixed, it is found without
    a restart."""
    found = [point for point in _installed(kind) if point.name == name]
    if not found:
        raise _refused(kind, "name", name, f"is not a {kind} of any installed package", _known(kind))
    if len(found) > 1:
        packages = " and ".join(sorted(map(_package, found)))
        remedy = "Uninstall one of them."
        raise _refused(kind, "name", name, f"is the name of {kind} of several packages: {packages}", remedy)
    [point] = found
    where = f"{point.value} of package {_package(point)}"
    try:
        made = point.load()
    except (Exception, SystemExit) as error:
        said = f"cannot be imported from {where}: {type(error).__name__}: {error}"
        raise _refused(kind, "name", name, said, "Fix or update that package.") from error
    if not callable(made):
        raise _refused(kind, "name", name, f"is {where}, which is no function", "Name a function there.")
    return made  # type: ignore[no-any-return]  # callable() does not narrow Any


def made(
    kind: str, spec: StudySpec, name: str, options: Mapping[str, Value], *, methods: tuple[str, ...]
) -> Any:
    """Make the policy or the sampler of a study. Raises InvalidFieldError if its package refuses the options, or
    returns something without these methods."""
    make = factory(kind, name)
    try:
        found = make(spec, dict(options))
    except InvalidFieldError:
        raise
    except (Exception, SystemExit) as error:
        said = f"are refused by {kind} {name}: {type(error).__name__}: {error}"
        raise _refused(kind, "options", dict(options), said, "Correct them.") from error
    missing = [method for method in methods if not callable(getattr(found, method, None))]
    if missing:
        said = f"gave a {type(found).__name__} without {', '.join(missing)}"
        raise _refused(
            kind, "name", name, said, f"Let it return a {kind}, as docs/how-to/own-policy.md says."
        )
    return found


def _installed(kind: str) -> list[EntryPoint]:
    return list(entry_points(group=_GROUPS[kind]))


def _known(kind: str) -> str:
    names = sorted({point.name for point in _installed(kind)})
    if not names:
        return (
            f"Install the package that has it beside the scheduler; it names it in the group {_GROUPS[kind]}."
        )
    more = ", …" if len(names) > _SHOWN else ""
    return f"Installed are {', '.join(names[:_SHOWN])}{more}. Else install its package beside the scheduler."


def _package(point: EntryPoint) -> str:
    return point.dist.name if point.dist is not None else point.module


def _refused(kind: str, field: str, value: object, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field=f"{kind}.{field}", value=show_value(value), message=message, remedy=remedy)]
    )
