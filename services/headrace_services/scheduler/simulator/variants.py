"""Other policies for the same study: what `--compare` and `--sweep` name.

`KIND[:SETTING=VALUE…]` is a policy kind with settings, as in `asha:eta=4` or `median:grace_steps=10`; `study` is
the study's own policy; `asha-stopping` stands for `asha:variant=stopping`. A policy of the study's own kind starts
from the study's settings. Another kind starts from its defaults and, if it has these settings too, the study's η
and rungs, so that policies are compared on the same rungs.
"""

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from pydantic import ValidationError

from headrace.errors import HeadraceError
from headrace.spec import StudySpec
from headrace.spec.study import spec_problems

ALIASES: Mapping[str, str] = {
    "asha-stopping": "asha:variant=stopping",
    "asha-promotion": "asha:variant=promotion",
}
OWN = "study"


class PolicyTextError(HeadraceError):
    """A policy that was named on the command line is not available."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Variant:
    """A study under one policy."""

    label: str
    spec: StudySpec


def compared(spec: StudySpec, text: str) -> tuple[Variant, ...]:
    """The variants that a list such as `run_all,asha,asha:eta=4` names, in order."""
    found: dict[str, Variant] = {}
    for name in (part.strip() for part in text.split(",")):
        if name:
            found[name] = variant(spec, name)
    if not found:
        raise PolicyTextError("no policy is named.", remedy="Name some, as in --compare asha,hyperband.")
    if OWN in found and len(found) > 1:
        found[OWN] = replace(found[OWN], label=OWN)  # next to its own kind it would have that one's name
    return tuple(found.values())


def swept(spec: StudySpec, text: str) -> tuple[str, tuple[Variant, ...]]:
    """The setting and the variants that `eta=2,3,4,8` names: the study's own policy with other values of a setting."""
    name, _, listed = text.partition("=")
    values = [value.strip() for value in listed.split(",") if value.strip()]
    if not name.strip() or not values:
        raise PolicyTextError(
            f"'{text}' is not a setting with values.", remedy="Write it as in --sweep eta=2,3,4,8."
        )
    name = name.strip()
    return name, tuple(_with(spec, f"{name}={value}", spec.policy.kind, {name: value}) for value in values)


def variant(spec: StudySpec, name: str) -> Variant:
    """The study under the policy that `name` names."""
    if name == OWN:
        return Variant(label=spec.policy.kind, spec=spec)
    kind, *settings = ALIASES.get(name, name).split(":")
    if name.startswith(tuple(f"{alias}:" for alias in ALIASES)):
        alias, _, more = name.partition(":")
        kind, *settings = [*ALIASES[alias].split(":"), *more.split(":")]
    changes: dict[str, str] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if not equals or not key or not value:
            raise PolicyTextError(
                f"'{setting}' in '{name}' is not a setting.", remedy="Write SETTING=VALUE, as in asha:eta=4."
            )
        changes[key] = value
    return _with(spec, name, kind, changes)


def _with(spec: StudySpec, label: str, kind: str, changes: Mapping[str, str]) -> Variant:
    own = spec.policy.model_dump(mode="json", exclude_unset=True)
    if spec.policy.kind == kind:
        settings: dict[str, Any] = own
    else:
        settings = {"kind": kind}
        shared: dict[str, Any] = {key: own[key] for key in ("eta", "price_pauses") if key in own}
        if len(spec.rungs()) > 1:
            shared["rungs"] = list(spec.rungs())
        settings |= {key: value for key, value in shared.items() if _has(spec, kind, key)}
    settings = {**settings, "kind": kind, **{key: _plain(value) for key, value in changes.items()}}
    for one, other in (("rungs", "min_steps"), ("rungs", "interval")):
        if other in changes and one not in changes:
            settings.pop(one, None)
        if one in changes and other not in changes:
            settings.pop(other, None)
    try:
        made = StudySpec.model_validate({**spec.model_dump(mode="json"), "policy": settings})
    except ValidationError as error:
        first = spec_problems(error)[0].violation()
        raise PolicyTextError(
            f"'{label}': {first.field} {first.message}.",
            remedy=first.remedy or "See the policies in docs/reference/study-file.md.",
        ) from None
    return Variant(label=label, spec=made)


def _has(spec: StudySpec, kind: str, setting: str) -> bool:
    """Whether policies of a kind have a setting, according to the kind's own model."""
    probe = {**spec.model_dump(mode="json"), "policy": {"kind": kind, setting: None}}
    try:
        StudySpec.model_validate(probe)
    except ValidationError as error:
        return all(
            "known" not in problem.message for problem in spec_problems(error) if setting in problem.loc
        )
    return True


def _plain(value: str) -> Any:
    """The value as YAML reads a scalar: a number, true or false, or text; `5+10+20` is a list."""
    if "+" in value.strip("+"):
        return [_plain(part) for part in value.split("+")]
    if value in ("true", "false"):
        return value == "true"
    for kind in (int, float):
        try:
            return kind(value)
        except ValueError:
            continue
    return value
