"""How workers get a study's program: its folder shipped to them by a digest, or a folder that they find."""

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import Flag, Text, integer_within

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""A SHA-256, as it is written."""
WAYS: Final = {"ship": True, "folder": False}
"""What a study file says of its code."""
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
Size = Annotated[int, PlainValidator(integer_within(0, numbers.BYTES))]


def _ways(value: Any) -> Any:
    """`code: ship` and `code: folder`, as a study file has them."""
    if value is None or isinstance(value, dict | Code):
        return value
    if isinstance(value, str) and value in WAYS:
        return {"ship": WAYS[value]}
    raise fault("is neither ship nor folder", "Write `code: ship` or `code: folder`, or leave it out.")


class Code(SpecModel):
    """The folder of a program, as it was when its study was created."""

    ship: Flag | None = None
    """Whether it is shipped; None: it depends on where the scheduler is."""
    digest: Text = ""
    """What workers get it by; empty where it is not shipped, or not yet."""
    size_bytes: Size = 0
    files: Size = 0
    commit: Text = ""
    dirty: Flag = False

    @model_validator(mode="after")
    def _sound(self) -> Self:
        problems = []
        if self.digest and not (DIGEST.fullmatch(self.digest) and self.ship):
            remedy = "Leave it out: `headrace run` and the Python client write it where the code is shipped."
            said = "is not the digest of shipped code"
            problems.append(Problem(loc=("digest",), value=self.digest, message=said, remedy=remedy))
        if self.commit and not _COMMIT.fullmatch(self.commit):
            remedy = "Leave it out: `headrace run` and the Python client write it."
            problems.append(
                Problem(loc=("commit",), value=self.commit, message="is not a commit", remedy=remedy)
            )
        reject(problems)
        return self


class OnCodeChange(StrEnum):
    """What happens when a trial runs other code than its study began with."""

    WARN = "warn"
    PAUSE = "pause"
    """The study pauses. A user accepts the change by resuming it."""
    REFUSE = "refuse"
    """The same, and the change is never accepted."""


HowShipped = Annotated[Code, BeforeValidator(_ways)]


def requirements_problem(path: str) -> str:
    """What is wrong with the file of a program's requirements, or nothing."""
    parts = path.split("/")
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "is not a path within the folder of the program"
    if parts[-1] != "uv.lock" and not parts[-1].endswith(".txt"):
        return "is neither a requirements.txt nor a uv.lock"
    return ""
