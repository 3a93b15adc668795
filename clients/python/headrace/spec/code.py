"""How workers get a study's program: its folder, shipped under a digest, or an existing folder."""

import re
from enum import StrEnum
from typing import Annotated, Any, Final, Self

from pydantic import BeforeValidator, PlainValidator, model_validator

from headrace.bounds import numbers
from headrace.spec.domains import SpecModel
from headrace.spec.problems import Problem, fault, reject
from headrace.spec.scalars import Flag, Text, integer_within

DIGEST: Final = re.compile(r"[0-9a-f]{64}")
"""The format of a SHA-256."""
WAYS: Final = {"ship": True, "folder": False}
"""The values of `code` in a study file."""
_COMMIT: Final = re.compile(r"[0-9a-f]{7,64}")
Size = Annotated[int, PlainValidator(integer_within(0, numbers.BYTES))]


def _ways(value: Any) -> Any:
    """`code: ship` and `code: folder`, as written in a study file."""
    if value is None or isinstance(value, dict | Code):
        return value
    if isinstance(value, str) and value in WAYS:
        return {"ship": WAYS[value]}
    raise fault("is neither ship nor folder", "Write `code: ship` or `code: folder`, or leave it out.")


class Code(SpecModel):
    """The folder of a program, as it was when its study was created."""

    ship: Flag | None = None
    """Whether it is shipped; None: depends on where the scheduler is."""
    digest: Text = ""
    """The digest under which workers get it; empty if it is not shipped, or not yet."""
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
    """What happens if a trial runs different code than its study started with."""

    WARN = "warn"
    PAUSE = "pause"
    """The study pauses. A user accepts the change by resuming it."""
    REFUSE = "refuse"
    """The study pauses, and the change is never accepted."""


HowShipped = Annotated[Code, BeforeValidator(_ways)]


def requirements_problem(path: str) -> str:
    """What is wrong with a program's requirements file, or nothing."""
    parts = path.split("/")
    if path.startswith("/") or not {"", ".", ".."}.isdisjoint(parts):
        return "is not a path within the folder of the program"
    if parts[-1] != "uv.lock" and not parts[-1].endswith(".txt"):
        return "is neither a requirements.txt nor a uv.lock"
    return ""
