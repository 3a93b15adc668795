"""The names that people choose: what each kind of name may contain, and the sentence that rejects an invalid one.

Every check of such a name, in a study file, in a request or on a command line, uses a rule in this table.
"""

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import PlainValidator

from headrace.errors import show_value
from headrace.spec.problems import ABSENT, Problem, fault
from headrace.spec.scalars import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """What one kind of name may contain."""

    kind: str
    begins: str
    """The allowed first characters, as the inside of a character class; `holds` is for the others."""
    holds: str
    longest: int
    example: str

    @property
    def use(self) -> str:
        """The rule in words: `lower-case letters, digits and -, beginning with a letter`."""
        held, signs = _parts(self.holds, _MANY)
        first, others = _parts(self.begins, _ONE)
        return f"{_listed(held, signs, 'and')}, beginning with {_listed(first, others, 'or')}"

    def problem(self, name: object, *loc: str) -> Problem | None:
        """Why a name is rejected, and the nearest valid one; None if it follows the rule."""
        if isinstance(name, str) and self.admits(name):
            return None
        said = (
            f"invalid {self.kind} name {show_value(name)}: use {self.use}, {self.longest} characters at most"
        )
        value = name if isinstance(name, str) else ABSENT  # any other character is only shown in the sentence
        return Problem(loc=loc, message=said, remedy=self.suggestion(name), value=value)

    def admits(self, name: str) -> bool:
        """Whether a name follows the rule."""
        pattern = f"[{self.begins}][{self.holds}]{{0,{self.longest - 1}}}"
        return re.fullmatch(pattern, name) is not None

    def suggestion(self, name: object) -> str:
        """A remedy: the nearest name that follows the rule, or an example."""
        text = name if isinstance(name, str) else ""
        seen = "".join(character for character in text if character.isprintable() or character.isspace())
        unseen = "Remove the characters that cannot be seen. " if seen != text else ""
        near = re.sub(f"[^{self.holds}]+", "-" if "-" in self.holds else "_", self._cased(seen).strip())
        near = re.sub(f"^[^{self.begins}]+", "", near)[: self.longest].rstrip("-_")
        return f"{unseen}For example: {near or self.example}."

    def _cased(self, text: str) -> str:
        return text if "A-Z" in self.holds else text.lower()


_MANY: Final = {"A-Za-z": "letters", "a-z": "lower-case letters", "0-9": "digits"}
_ONE: Final = {"A-Za-z": "a letter", "a-z": "a letter", "0-9": "a digit"}


def _parts(characters: str, words: Mapping[str, str]) -> tuple[list[str], str]:
    """The ranges of a character class, in words, and its other characters."""
    found = []
    for written, word in words.items():
        if written in characters:
            characters = characters.replace(written, "")
            found.append(word)
    return found, characters


def _listed(words: list[str], signs: str, last: str) -> str:
    """`letters, digits, _ . and -`."""
    items = [item for item in (*words, " ".join(signs[:-1]), signs[-1:]) if item]
    return f"{', '.join(items[:-1])} {last} {items[-1]}" if items[1:] else items[0]


STUDY: Final = NameRule(
    kind="study",
    begins="a-z",
    holds="a-z0-9-",
    longest=63,
    example="my-study",
)
PROJECT: Final = NameRule(
    kind="project",
    begins="a-z",
    holds="a-z0-9-",
    longest=63,
    example="vision",
)
DEFAULT_PROJECT: Final = "default"
"""The default project."""
PARAMETER: Final = NameRule(
    kind="parameter",
    begins="A-Za-z_",
    holds="A-Za-z0-9_.-",
    longest=127,
    example="learning_rate",
)
METRIC: Final = NameRule(
    kind="metric",
    begins="A-Za-z_",
    holds="A-Za-z0-9_./@-",
    longest=127,
    example="val_loss",
)
WORKER: Final = NameRule(
    kind="worker",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_.-",
    longest=128,
    example="node-1",
)
LABEL: Final = NameRule(
    kind="label",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_./-",
    longest=128,
    example="zone",
)
TAG: Final = NameRule(
    kind="tag",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_.:/-",
    longest=64,
    example="paper",
)
PLAN_FILE: Final = NameRule(
    kind="file",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_.-",
    longest=100,
    example="plan.json",
)

PLUGIN: Final = NameRule(
    kind="plugin",
    begins="A-Za-z_",
    holds="A-Za-z0-9_.-",
    longest=127,
    example="patience",
)


def _checked(rule: NameRule) -> Callable[[Any], str]:
    """A validator for a field with such a name."""

    def check(value: Any) -> str:
        name = text_of(value)
        problem = rule.problem(name)
        if problem is not None:
            raise fault(problem.message, problem.remedy)
        return name

    return check


StudyName = Annotated[str, PlainValidator(_checked(STUDY))]
Metric = Annotated[str, PlainValidator(_checked(METRIC))]
PluginName = Annotated[str, PlainValidator(_checked(PLUGIN))]
LabelName = Annotated[str, PlainValidator(_checked(LABEL))]
