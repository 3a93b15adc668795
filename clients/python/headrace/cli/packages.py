"""Which packages Headrace and its extras require, and which of these are not installed."""

import re
from collections.abc import Mapping
from importlib.metadata import PackageNotFoundError, distribution
from typing import Final

_REQUIREMENT: Final = re.compile(r"^(?P<name>[\w.-]+)[^;]*(;(?P<marker>.*))?$")
_EXTRA: Final = re.compile(r"^\s*extra == ['\"](?P<extra>[\w-]+)['\"]\s*$")
EXTRAS: Final = ("services", "worker", "torch", "report")
"""The extras that a machine may need; extras of single frameworks are left out."""


def required(name: str = "headrace") -> Mapping[str, list[str]]:
    """What a distribution requires, by extra; `""` holds the unconditional requirements. Requirements that
    depend on the machine are left out.
    """
    found: dict[str, list[str]] = {}
    for text in distribution(name).requires or ():
        requirement = _REQUIREMENT.match(text)
        marker = requirement["marker"] if requirement else None
        extra = _EXTRA.match(marker) if marker else None
        if requirement and (extra or not marker):
            found.setdefault(extra["extra"] if extra else "", []).append(requirement["name"])
    return found


def present(names: list[str]) -> dict[str, str]:
    """The versions of the installed packages."""
    found = {}
    for name in names:
        try:
            found[name] = distribution(name).version
        except PackageNotFoundError:
            continue
    return found


def missing(names: list[str]) -> list[str]:
    """The packages that are not installed, including those that required packages need in turn: `platformdirs
    (for pgserver)`.
    """
    absent: list[str] = []
    seen: set[str] = set()
    waiting = [(name, "") for name in names]
    while waiting:
        name, wanted_by = waiting.pop(0)
        if (plain := re.sub(r"[-_.]+", "-", name).lower()) in seen:
            continue
        seen.add(plain)
        try:
            waiting += [(needed, name) for needed in required(name).get("", ())]
        except PackageNotFoundError:
            absent.append(f"{name} (for {wanted_by})" if wanted_by else name)
    return absent
