"""A service for one run: `headrace up` as a child process with its own home and a free port.

The child writes the file `address` when it is ready and removes it at a clean stop. It has its own session, so
the Ctrl-C of a terminal reaches only this process, which then stops the child cleanly (SIGTERM: trials save,
workers exit, the database shuts down). If this process is killed instead, the tether does the same.
"""

import os
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import datetime
from pathlib import Path

from headrace.cli.failure import CommandError
from headrace.cli.output import Output
from headrace.home import ADDRESS_FILE, address_in, append_private, home_dir, make_private
from headrace.tethered import tethered

READY_TIMEOUT_S = 120.0
_POLL_S = 0.05


def new_home(study: str) -> Path:
    """A new folder for a run."""
    stamp = datetime.now().astimezone().strftime("%Y%m%d-%H%M%S")
    return home_dir() / "local" / f"{study}-{stamp}-{os.getpid()}"


@contextmanager
def local_service(home: Path, *, slots: int | None, notes: Output) -> Iterator[str]:
    """Runs the service while in this context; yields its address."""
    make_private(home)
    log_path = home / "up.log"
    notes.note(f"Starting a service in {home}")
    before = _stamp(home)
    args = ["up", "--home", str(home), "--port", "0", "--console", "0"]
    args += ["--slots", str(slots)] if slots is not None else []
    with append_private(log_path) as log, tethered(args, stdout=log, stderr=log) as child:
        yield _wait_ready(child, home, log_path, before)


def _wait_ready(child: "subprocess.Popen[bytes]", home: Path, log_path: Path, before: int | None) -> str:
    deadline = time.monotonic() + READY_TIMEOUT_S
    while time.monotonic() < deadline:
        address = address_in(home)
        if address and _stamp(home) != before:
            return address
        code = child.poll()
        if code is not None:
            raise CommandError(_why_not(log_path, code), remedy=f"The full log is {log_path}.")
        time.sleep(_POLL_S)
    raise CommandError(
        f"The service was not ready after {READY_TIMEOUT_S:g} s.", remedy=f"Its log is {log_path}."
    )


def _stamp(home: Path) -> int | None:
    """A stamp that distinguishes an address left by a crash from a newly written one."""
    try:
        return (home / ADDRESS_FILE).stat().st_mtime_ns
    except FileNotFoundError:
        return None


def _why_not(log_path: Path, code: int) -> str:
    lines = log_path.read_text(encoding="utf-8", errors="replace").strip().splitlines()
    errors = [number for number, line in enumerate(lines) if line.startswith("error:")]
    last = lines[errors[-1] :] if errors else lines[-1:]
    said = f": {' '.join(' '.join(last).removeprefix('error:').split())}" if last else ""
    return f"The service did not start (exit code {code}){said}"
