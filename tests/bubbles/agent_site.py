"""Agents as processes, and the command that queries them."""

import json
import os
import signal
import subprocess
import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from headrace.v1 import join_pb2
from headrace_services.identity.authority import Authority
from headrace_worker import credential

HEADRACE = [sys.executable, "-m", "headrace.cli"]


class AgentProcess:
    """`headrace bubble-agent` on a folder. The constructor returns once it serves."""

    def __init__(self, folder: Path, *options: str) -> None:
        self.folder = folder
        self.process = subprocess.Popen(
            [*HEADRACE, "bubble-agent", "--json", "--folder", str(folder), *options],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "COLUMNS": "200"},
        )
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        self.told: dict[str, Any] = json.loads(line) if line else {}

    def kill(self) -> None:
        self.process.kill()
        self.process.communicate()

    def stop(self) -> tuple[int, str]:
        """Stop it cleanly; returns its status and its log."""
        self.process.send_signal(signal.SIGTERM)
        _, log = self.process.communicate(timeout=30)
        return self.process.returncode, log

    def jobs(self) -> list[dict[str, Any]]:
        """The output of `headrace bubbles --json`."""
        code, out, err = bubbles(self.folder, "--json")
        assert code == 0, err
        return json.loads(out)["jobs"]


def bubbles(folder: Path, *options: str) -> tuple[int, str, str]:
    """Runs `headrace bubbles` in this process instead of a shell."""
    ran = subprocess.run(
        [*HEADRACE, "bubbles", "--folder", str(folder), *options], capture_output=True, text=True, timeout=60
    )
    return ran.returncode, ran.stdout, ran.stderr


def join(home: Path, signed_by: Authority, name: str = "w", *, ago: timedelta = timedelta(0)) -> Path:
    """A worker's home, with its certificate for a day, signed `ago` before now."""
    home.mkdir(exist_ok=True)
    key = credential.new_key()
    pem = signed_by.sign_worker(name, key.public_key(), now=datetime.now(UTC) - ago, lives=timedelta(days=1))
    kept = join_pb2.Credential(certificate=pem.decode(), authorities=signed_by.trusted_pem.decode())
    credential.store(home, credential.credential_of(key, kept))
    return home
