"""The names that people choose: what each kind of name may hold, and the one sentence that refuses a bad one.

Every check of such a name, in a study file, in a request and on a command line, uses a rule of this table.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any, Final

from pydantic import PlainValidator

from headrace.errors import show_value
from headrace.spec.problems import fault
from headrace.spec.scalars import text_of


@dataclass(frozen=True, slots=True, kw_only=True)
class NameRule:
    """What one kind of name may hold."""

    kind: str
    begins: str
    """The first character, as the inside of a character class; `holds` are the others."""
    holds: str
    longest: int
    use: str
    example: str

    def admits(self, name: str) -> bool:
        """Whether a name follows the rule."""
        pattern = f"[{self.begins}][{self.holds}]{{0,{self.longest - 1}}}"
        return re.fullmatch(pattern, name) is not None

    def refusal(self, name: object) -> str:
        """Why a name is refused: `invalid study name 'x y': use lower-case letters, digits and -, …`."""
        return (
            f"invalid {self.kind} name {show_value(name)}: use {self.use}, {self.longest} characters at most"
        )

    def suggestion(self, name: object) -> str:
        """A remedy: the nearest name that follows the rule, or an example."""
        text = name if isinstance(name, str) else ""
        near = re.sub(f"[^{self.holds}]+", "-" if "-" in self.holds else "_", self._cased(text).strip())
        near = re.sub(f"^[^{self.begins}]+", "", near)[: self.longest].rstrip("-_")
        return f"For example: {near or self.example}."

    def _cased(self, text: str) -> str:
        return text if "A-Z" in self.holds else text.lower()


STUDY: Final = NameRule(
    kind="study",
    begins="a-z",
    holds="a-z0-9-",
    longest=63,
    use="lower-case letters, digits and -, beginning with a letter",
    example="my-study",
)
PARAMETER: Final = NameRule(
    kind="parameter",
    begins="A-Za-z_",
    holds="A-Za-z0-9_.-",
    longest=127,
    use="letters, digits, _ . and -, beginning with a letter or _",
    example="learning_rate",
)
METRIC: Final = NameRule(
    kind="metric",
    begins="A-Za-z_",
    holds="A-Za-z0-9_./@-",
    longest=127,
    use="letters, digits, _ . / @ and -, beginning with a letter or _",
    example="val_loss",
)
WORKER: Final = NameRule(
    kind="worker",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_.-",
    longest=128,
    use="letters, digits, _ . and -, beginning with a letter, a digit or _",
    example="node-1",
)
LABEL: Final = NameRule(
    kind="label",
    begins="A-Za-z0-9_",
    holds="A-Za-z0-9_./-",
    longest=128,
    use="letters, digits, _ . / and -, beginning with a letter, a digit or _",
    example="zone",
)
RULES: Final = (STUDY, PARAMETER, METRIC, WORKER, LABEL)


def _checked(rule: NameRule) -> Callable[[Any], str]:
    """A validator of a field that holds such a name."""

    def check(value: Any) -> str:
        name = text_of(value)
        if not rule.admits(name):
            raise fault(rule.refusal(name), rule.suggestion(name))
        return name

    return check


StudyName = Annotated[str, PlainValidator(_checked(STUDY))]
Metric = Annotated[str, PlainValidator(_checked(METRIC))]
LabelName = Annotated[str, PlainValidator(_checked(LABEL))]
