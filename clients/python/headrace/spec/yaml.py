"""YAML to plain data, without the surprises of YAML 1.1.

PyYAML follows YAML 1.1, where `1e-4` is a text, `on` is a boolean, `1:30` is ninety and `010` is eight. Study files
follow the core schema of YAML 1.2: those are a number, a text, a text and ten. A key that stands twice is an error
(PyYAML keeps the last one), and so are tags, dates being plain texts.
"""

import re
from typing import Any, Final

import yaml

from headrace.errors import InvalidFieldError, Violation
from headrace.spec.problems import Loc, Problem

_MAX_NODES: Final = 100_000
_SCALARS: Final = (
    ("tag:yaml.org,2002:null", re.compile(r"~|null|Null|NULL|"), "~nN"),
    ("tag:yaml.org,2002:bool", re.compile(r"true|True|TRUE|false|False|FALSE"), "tTfF"),
    ("tag:yaml.org,2002:int", re.compile(r"[-+]?[0-9]+|0o[0-7]+|0x[0-9a-fA-F]+"), "-+0123456789"),
    (
        "tag:yaml.org,2002:float",
        re.compile(
            r"[-+]?(\.[0-9]+|[0-9]+(\.[0-9]*)?)([eE][-+]?[0-9]+)?|[-+]?\.(inf|Inf|INF)|\.(nan|NaN|NAN)"
        ),
        "-+.0123456789",
    ),
)


class _CoreLoader(yaml.SafeLoader):
    """Resolves plain scalars by the core schema of YAML 1.2."""

    yaml_implicit_resolvers: dict[str, list[tuple[str, re.Pattern[str]]]] = {}  # noqa: RUF012  (PyYAML's own name)


for _tag, _pattern, _first in _SCALARS:
    for _letter in [*_first, *([""] if _tag.endswith("null") else [])]:
        _anchored = re.compile(f"(?:{_pattern.pattern})$")
        _CoreLoader.yaml_implicit_resolvers.setdefault(_letter, []).append((_tag, _anchored))


def read_yaml(text: str) -> tuple[Any, list[Problem]]:
    """The data and the problems that do not stop the reading; raises `InvalidFieldError` for bad syntax."""
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        where = f"line {mark.line + 1}, column {mark.column + 1}" if mark else "somewhere"
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise _unreadable(where, said) from None
    except yaml.YAMLError as error:
        raise _unreadable("somewhere", " ".join(str(error).split())) from None
    reader = _Reader()
    return (reader.read(node, ()) if node is not None else None), reader.problems


class _Reader:
    """Walks the nodes, so that a repeated key is known by its path and its line."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0
        self._open: set[int] = set()

    def read(self, node: yaml.Node, loc: Loc) -> Any:
        self._nodes += 1
        if self._nodes > _MAX_NODES or id(node) in self._open:
            mark = node.start_mark
            raise _unreadable(
                f"line {mark.line + 1}, column {mark.column + 1}", "its aliases repeat themselves without end"
            )
        self._open.add(id(node))
        try:
            match node:
                case yaml.MappingNode():
                    return self._mapping(node, loc)
                case yaml.SequenceNode():
                    return [self.read(item, (*loc, index)) for index, item in enumerate(node.value)]
                case _:
                    return self._scalar(node, loc)
        finally:
            self._open.discard(id(node))

    def _mapping(self, node: yaml.MappingNode, loc: Loc) -> dict[str, Any]:
        data: dict[str, Any] = {}
        lines: dict[str, int] = {}
        for key_node, value_node in node.value:
            key = key_node.value if isinstance(key_node, yaml.ScalarNode) else None
            line = key_node.start_mark.line + 1
            if key is None or key_node.tag == "tag:yaml.org,2002:null":
                self.problems.append(
                    Problem(
                        loc=loc,
                        message=f"has a key on line {line} that is no text",
                        remedy="Use a plain word as the key.",
                    )
                )
                continue
            here = (*loc, key)
            value = self.read(value_node, here)
            if key in data:
                self.problems.append(
                    Problem(
                        loc=here,
                        message=f"stands twice, on lines {lines[key]} and {line}",
                        remedy="Remove one of the two.",
                    )
                )
                continue
            data[key] = value
            lines[key] = line
        return data

    def _scalar(self, node: yaml.Node, loc: Loc) -> Any:
        text = str(node.value)
        match node.tag.removeprefix("tag:yaml.org,2002:"):
            case "null":
                return None
            case "bool":
                return text.lower() == "true"
            case "int":
                return _whole(text)
            case "float":
                return _float(text)
            case "str":
                return text
            case tag:
                self.problems.append(
                    Problem(
                        loc=loc,
                        message=f"has the tag {tag}, which study files do not have",
                        remedy="Write the plain value.",
                    )
                )
                return text


def _whole(text: str) -> int:
    if text[:2] in ("0x", "0o"):
        return int(text, 0)
    # A number of more digits than Python converts is beyond every bound anyway.
    return int(text) if len(text) <= 100 else 10**100


def _float(text: str) -> float:
    """The number; .inf and .nan come out as such, for validation to refuse by their paths."""
    special = text.lower().replace(".", "")
    return float(special if special.lstrip("+-") in ("inf", "nan") else text)


def _unreadable(where: str, said: str) -> InvalidFieldError:
    return InvalidFieldError(
        [Violation(field=where, message=f"is not valid YAML: {said}", remedy="Correct the file there.")]
    )
