"""Another OS user than the tests' own, a Python that it may run, and a daemon that runs trials as it."""

import asyncio
import os
import pwd
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import grpc
import pytest
from daemon_process import COMMAND
from worker_site import Site

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


@asynccontextmanager
async def daemon_of_root(site: Site, slots: int, **environ: str) -> AsyncIterator[asyncio.subprocess.Process]:
    """A daemon on the site's home, which is root; it is killed at the end."""
    settings = site.settings
    with (site.root / "daemon.log").open("ab") as log:
        daemon = await asyncio.create_subprocess_exec(
            *(interpreter(), "-c", COMMAND, "--scheduler", site.scheduler.address, "--name", settings.name),
            *("--run-as", USER, "--home", str(settings.home), "--store", settings.store_url),
            *("--cpu-slots", str(slots), "--stop-grace", "1"),
            stdout=log,
            stderr=log,
            env={**os.environ, "PYTHONPATH": IMPORTS, **environ},
        )
    try:
        yield daemon
    finally:
        if daemon.returncode is None:
            daemon.kill()
            await daemon.wait()
        print((site.root / "daemon.log").read_text()[-4000:])
