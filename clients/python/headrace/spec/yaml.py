"""YAML to plain data, without the surprises of YAML 1.1.

PyYAML follows YAML 1.1, in which `1e-4` is a string, `on` is a boolean, `1:30` is ninety and `010` is eight.
Study files follow the core schema of YAML 1.2, in which those are a number, a string, a string and ten. A
duplicate key is an error (PyYAML keeps the last one), and so are tags. Dates are plain strings.

A short text may expand to a lot: nested lists, or aliases of aliases. So depth and the number of values are
limited. A value counts each time an alias refers to it.
"""

import re
from typing import Any, Final

import yaml
from yaml.reader import ReaderError

from headrace.errors import InvalidFieldError, Violation
from headrace.spec.problems import Loc, Problem
from headrace.userfile import LONGEST_NUMBER

_COLLECTIONS: Final = ("tag:yaml.org,2002:map", "tag:yaml.org,2002:seq")
_MAX_NODES: Final = 100_000
_MAX_DEPTH: Final = 50
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

    def __init__(self, text: str) -> None:
        super().__init__(text)
        self._depth = self._nodes = 0

    def compose_node(self, parent: yaml.Node | None, index: int) -> yaml.Node | None:
        """Like PyYAML's, which recurses as deeply as the text is nested."""
        self._depth += 1
        self._nodes += 1
        if self._depth > _MAX_DEPTH:
            raise _TooMuchError(self._mark(), f"it is nested deeper than {_MAX_DEPTH} levels")
        if self._nodes > _MAX_NODES:
            raise _TooMuchError(self._mark(), f"it has more than {_MAX_NODES} values")
        node = super().compose_node(parent, index)
        self._depth -= 1
        return node

    def _mark(self) -> yaml.Mark:
        mark: yaml.Mark = self.peek_event().start_mark  # type: ignore[no-untyped-call]  # not in its stubs
        return mark


class _TooMuchError(yaml.MarkedYAMLError):
    """The text is larger than any study file."""

    def __init__(self, mark: yaml.Mark, said: str) -> None:
        super().__init__(problem=said, problem_mark=mark)


for _tag, _pattern, _first in _SCALARS:
    for _letter in [*_first, *([""] if _tag.endswith("null") else [])]:
        _anchored = re.compile(f"(?:{_pattern.pattern})$")
        _CoreLoader.yaml_implicit_resolvers.setdefault(_letter, []).append((_tag, _anchored))


def read_yaml(text: str, file: str = "") -> tuple[Any, list[Problem]]:
    """The data, and the problems that do not stop reading; raises `InvalidFieldError` for bad syntax, with the
    position in `file`.
    """
    try:
        return _read(text)
    except _UnreadableError as error:
        place = f"line {error.line}, column {error.column}"
        where = f"{file}, {place}" if file else place
        violation = Violation(
            field=where, message=f"is not valid YAML: {error.said}", remedy="Correct the file there."
        )
        raise InvalidFieldError([violation]) from None


def _read(text: str) -> tuple[Any, list[Problem]]:
    try:
        node = yaml.compose(text, Loader=_CoreLoader)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        said = ", ".join(part for part in (error.context, error.problem) if part)
        raise _UnreadableError.at(mark, said) from None
    except ReaderError as error:
        before = text[: error.position]
        column = len(before) - before.rfind("\n")
        said = f"the character U+{int(error.character):04X} may not stand there"
        raise _UnreadableError(before.count("\n") + 1, column, said) from None
    except (ValueError, OverflowError) as error:  # such as an escape of an invalid character
        raise _UnreadableError(1, 1, str(error)) from None
    reader = _Reader()
    return (reader.read(node, ()) if node is not None else None), reader.problems


class _UnreadableError(Exception):
    """The text is not YAML that a study file may contain."""

    def __init__(self, line: int, column: int, said: str) -> None:
        super().__init__(said)
        self.line, self.column, self.said = line, column, said

    @classmethod
    def at(cls, mark: yaml.Mark | None, said: str) -> "_UnreadableError":
        """The error at a PyYAML mark, which counts from 0."""
        return cls(mark.line + 1, mark.column + 1, said) if mark else cls(1, 1, said)


class _Reader:
    """Walks the nodes, so that a duplicate key is reported with its path and line."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._nodes = 0
        self._open: set[int] = set()

    def read(self, node: yaml.Node, loc: Loc) -> Any:
        self._nodes += 1
        if id(node) in self._open:
            raise _UnreadableError.at(node.start_mark, "its aliases repeat themselves without end")
        if self._nodes > _MAX_NODES or len(self._open) > _MAX_DEPTH:
            said = f"its aliases repeat more than {_MAX_NODES} values"
            if self._nodes <= _MAX_NODES:
                said = f"its aliases are nested deeper than {_MAX_DEPTH} levels"
            raise _UnreadableError.at(node.start_mark, said)
        self._open.add(id(node))
        try:
            if not isinstance(node, yaml.ScalarNode) and node.tag not in _COLLECTIONS:
                self._strange_tag(node, loc)
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
            case _:
                self._strange_tag(node, loc)
                return text

    def _strange_tag(self, node: yaml.Node, loc: Loc) -> None:
        line = node.start_mark.line + 1
        message = f"has the tag {node.tag[:80]} on line {line}, which study files do not have"
        self.problems.append(Problem(loc=loc, message=message, remedy="Write the plain value."))


def _whole(text: str) -> int:
    # A number with more digits than Python converts exceeds every bound anyway.
    if len(text) > LONGEST_NUMBER:
        largest: int = 10**LONGEST_NUMBER
        return -largest if text.startswith("-") else largest
    return int(text, 0) if text[:2] in ("0x", "0o") else int(text)


def _float(text: str) -> float:
    """The number; .inf and .nan are returned as such, for validation to reject with their paths."""
    special = text.lower().replace(".", "")
    return float(special if special.lstrip("+-") in ("inf", "nan") else text)
