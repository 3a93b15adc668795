"""A command run in the process of its test."""

from collections.abc import Callable
from dataclasses import dataclass

import pytest

from headrace.cli import main


@dataclass(frozen=True)
class Result:
    """The outcome of a command."""

    code: int
    out: str
    err: str


Invoke = Callable[..., Result]


@pytest.fixture
def invoke(capsys: pytest.CaptureFixture[str]) -> Invoke:
    """Runs a command in this process, as in a pipe."""

    def run(*arguments: str) -> Result:
        capsys.readouterr()
        with pytest.raises(SystemExit) as left:
            main(arguments)
        out, err = capsys.readouterr()
        code = left.value.code
        return Result(code=code if isinstance(code, int) else 1 if code else 0, out=out, err=err)

    return run
