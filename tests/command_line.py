"""Runs commands in the test's own process: a new interpreter takes a second of a core to import what they need."""

import io
import os
from collections.abc import Mapping
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from subprocess import CompletedProcess

import pytest

from headrace.cli import main


def headrace_command(
    *arguments: str, folder: Path | None = None, env: Mapping[str, str] | None = None
) -> "CompletedProcess[str]":
    """Runs a command in a folder, with an environment of its own, as if its output were a pipe."""
    out, err = io.StringIO(), io.StringIO()
    with pytest.MonkeyPatch.context() as patch, redirect_stdout(out), redirect_stderr(err):
        if folder is not None:
            patch.chdir(folder)
        if env is not None:
            for name in os.environ.keys() - env.keys():
                patch.delenv(name)
            for name, value in env.items():
                patch.setenv(name, value)
        with pytest.raises(SystemExit) as left:
            main(arguments)
    code = left.value.code
    status = code if isinstance(code, int) else 1 if code else 0
    return CompletedProcess(arguments, status, out.getvalue(), err.getvalue())
