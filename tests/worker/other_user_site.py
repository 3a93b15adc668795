"""Another OS user than the tests' own, and a Python that it may run."""

import os
import pwd
import subprocess
import sys
from functools import cache
from pathlib import Path

import grpc
import pytest

import headrace
import headrace_worker

USER = "nobody"
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="only root may become another user")
NUMBER = f"{sys.version_info.major}.{sys.version_info.minor}"
IMPORTS = os.pathsep.join(
    str(Path(package.__file__ or "").parents[1]) for package in (headrace, headrace_worker, grpc)
)


@cache
def interpreter() -> str:
    """A Python that the user may run, of the same version as this one."""
    for program in (sys.executable, f"/usr/bin/python{NUMBER}"):
        try:
            subprocess.run(
                [program, "-c", "import grpc"], user=USER, group=pwd.getpwnam(USER).pw_gid, extra_groups=[],
                cwd="/", env={"PYTHONPATH": IMPORTS}, check=True, capture_output=True,
            )  # fmt: skip
        except (OSError, subprocess.CalledProcessError):
            continue
        return program
    pytest.skip(f"user {USER} may run no Python {NUMBER} here")
