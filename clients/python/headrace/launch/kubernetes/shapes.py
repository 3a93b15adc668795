"""The types of what a launch reads and adds to in a site's manifest of a pod. The API server checks the rest."""

from collections.abc import Iterator, Mapping
from typing import Any, Final

from headrace.errors import Violation

_KINDS: Final[Mapping[type, str]] = {dict: "a mapping", list: "a list", str: "text"}
_OF_POD: Final = {
    "metadata": dict,
    "metadata.labels": dict,
    "metadata.annotations": dict,
    "spec": dict,
    "spec.securityContext": dict,
    "spec.containers": list,
    "spec.volumes": list,
}
_OF_CONTAINER: Final = {
    "name": str,
    "image": str,
    "args": list,
    "env": list,
    "volumeMounts": list,
    "resources": dict,
    "resources.limits": dict,
    "securityContext": dict,
}
_OF_VARIABLE: Final = {"name": str, "value": str}


def misshapen(pod: Mapping[str, Any], option: str) -> list[Violation]:
    """What has another type than Kubernetes wants, in a pod's `metadata` and `spec`."""
    found = list(_wrong(pod, _OF_POD, option))
    if found:
        return found
    for place, container in _items(pod["spec"] or {}, "containers", f"{option}: spec"):
        if not isinstance(container, dict):
            found.append(_violation(place, container, dict))
            continue
        wrong = list(_wrong(container, _OF_CONTAINER, place))
        found += wrong
        if not wrong:
            found += [
                _violation(at, one, str)
                for at, one in _items(container, "args", place)
                if not isinstance(one, str)
            ]
            for at, one in _items(container, "env", place):
                found += (
                    _wrong(one, _OF_VARIABLE, at) if isinstance(one, dict) else [_violation(at, one, dict)]
                )
    return found


def _items(owner: Mapping[str, Any], key: str, place: str) -> Iterator[tuple[str, Any]]:
    for index, one in enumerate(owner.get(key) or ()):
        yield f"{place}.{key}[{index}]", one


def _wrong(owner: Mapping[str, Any], kinds: Mapping[str, type], place: str) -> Iterator[Violation]:
    """Keys that are there, are not null, and have another type. A key below one of these is not looked at."""
    for path, kind in kinds.items():
        value: Any = owner
        for key in path.split("."):
            value = value.get(key) if isinstance(value, dict) else None
        if value is not None and not isinstance(value, kind):
            yield _violation(f"{place}{'.' if '[' in place else ': '}{path}", value, kind)


def _violation(place: str, value: object, kind: type) -> Violation:
    remedy = f'Write it in quotes: "{value}".' if kind is str and not isinstance(value, dict | list) else ""
    return Violation(
        field=place, value=str(value), message=f"is not {_KINDS[kind]}", remedy=remedy or "Correct it."
    )
