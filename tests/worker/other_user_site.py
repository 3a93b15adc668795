"""A second OS user, a Python that this user may run, and a daemon that runs trials as this user."""

import asyncio
import os
import pwd
import shutil
import subprocess
import sys
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from functools import cache
from pathlib import Path

import grpc
import pytest
import yaml
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

COMPILER = shutil.which("cc") or shutil.which("gcc")
# Writes as which user it is loaded, and which of the files in HR_TRIES it can read.
LIBRARY = """
#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>
unsigned la_version(unsigned version) { return version; }
__attribute__((constructor)) static void said(void) {
    int file = open(SEEN, O_WRONLY | O_APPEND);
    dprintf(file, "%d %d %d %s\\n", getuid(), geteuid(), getegid(), program_invocation_short_name);
    char *tries = getenv("HR_TRIES");
    for (char *path = tries ? strtok(strdup(tries), ":") : NULL; path; path = strtok(NULL, ":")) {
        int found = open(path, O_RDONLY | O_NONBLOCK);
        if (found >= 0)
            dprintf(file, "reads %s\\n", path);
        close(found);
    }
    close(file);
}
"""
# Leaves a child without session, parent or environment that names its trial. Its files in /proc are root's.
LEAVES = """
import os, subprocess, sys, time
left = '''
import ctypes, os, sys, time
ctypes.CDLL(None).prctl(4, 0, 0, 0, 0)  # PR_SET_DUMPABLE
with open(sys.argv[1] + ".new", "w") as file:
    file.write(str(os.getpid()))
os.rename(sys.argv[1] + ".new", sys.argv[1])
time.sleep(300)
'''
command = [sys.executable, "-I", "-S", "-c", left, sys.argv[1]]
subprocess.run(["env", "-i", "setsid", "sh", "-c", 'setsid "$@" &', "sh", *command], check=True)
while not os.path.exists(sys.argv[1]):
    time.sleep(0.01)
if len(sys.argv) > 2:
    time.sleep(300)
"""


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


def library_that_says(folder: Path, seen: Path) -> str:
    """A library that appends to `seen` as which user it is loaded."""
    if COMPILER is None:
        pytest.skip("no C compiler")
    seen.touch()
    seen.chmod(0o666)
    source, made = folder / "said.c", folder / "said.so"
    source.write_text(LIBRARY)
    subprocess.run([COMPILER, "-shared", "-fPIC", f'-DSEEN="{seen}"', "-o", made, source], check=True)
    return str(made)


def of_a_container() -> tuple[str, ...]:
    """The start of a command line that gives a process only the rights of the worker in docker-compose.yml."""
    compose = yaml.safe_load((Path(__file__).parents[2] / "docker-compose.yml").read_text(encoding="utf-8"))
    worker = compose["services"]["worker"]
    assert worker["cap_drop"] == ["ALL"]
    assert worker["security_opt"] == ["no-new-privileges:true"]
    if shutil.which("setpriv") is None:
        pytest.skip("setpriv is not installed")
    rights = ",".join(f"+{name.lower()}" for name in worker["cap_add"])
    return ("setpriv", "--no-new-privs", "--bounding-set", f"-all,{rights}", "--")


@asynccontextmanager
async def daemon_of_root(
    site: Site, slots: int, begins: tuple[str, ...] = (), options: tuple[str, ...] = (), **environ: str
) -> AsyncIterator[asyncio.subprocess.Process]:
    """A daemon on the site's home that runs as root and is killed at the end. `begins` starts its command line, and
    `options` end it."""
    settings = site.settings
    with (site.root / "daemon.log").open("ab") as log:
        daemon = await asyncio.create_subprocess_exec(
            *begins,
            *(interpreter(), "-c", COMMAND, "--scheduler", site.scheduler.address, "--name", settings.name),
            *("--run-as", USER, "--home", str(settings.home), "--store", settings.store_url),
            *("--cpu-slots", str(slots), "--stop-grace", "1", *options),
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
