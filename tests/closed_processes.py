"""The closed service as the commands that people start: `headrace scheduler`, `planner` and `bubble-agent`."""

import asyncio
import json
import os
import re
import subprocess
import sys
from collections.abc import AsyncIterator, Mapping
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

from closed_site import WORKER, Addresses, ClosedSite, certificate_for, held_by, tokens_of_callers
from limited import limited
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.identity import authority
from headrace_worker import credential

STARTS_WITHIN_S = 90.0


@asynccontextmanager
async def closed_processes(
    engine: AsyncEngine, database_url: str, folder: Path, *, memory_bytes: int | None = None
) -> AsyncIterator[ClosedSite]:
    """The service; each command may use this much memory. Everything is stopped afterwards."""
    authority.make(ca := folder / "ca", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    signer = authority.load(ca)
    (home := folder / "home").mkdir()
    credential.store(home, certificate_for(signer, "agent"))
    pids: dict[str, int] = {}
    async with AsyncExitStack() as stack:
        environment = {"HEADRACE_DATABASE_URL": database_url, "HEADRACE_TLS_CA": str(ca / "ca.pem")}

        async def started(name: str, *given: str) -> Path:
            log = folder / f"{name}.log"
            process = start_command(log, environment, memory_bytes, name, *given)
            pids[name] = process.pid
            stack.push_async_callback(end_command, process)
            return log

        log = await started(
            "scheduler", "--ca", str(ca), "--listen", "127.0.0.1:0", "--worker-listen", "127.0.0.1:0",
            "--auth", "tokens", "--sampler-processes", "1",
        )  # fmt: skip
        users = await until_said(log, r"serving on (\S+)")
        workers = await until_said(log, r"workers connect to (\S+)")
        log = await started(
            "planner", "--listen", "127.0.0.1:0", "--tls-cert", str(ca / "server.pem"), "--tls-key",
            str(ca / "server.key"), "--auth", "tokens", "--scheduler", f"tls://{users}", "--workers", "1",
        )  # fmt: skip
        planner = await until_said(log, r"serving on (\S+)")
        log = await started(
            "bubble-agent", "--json", "--folder", str(folder / "b"), "--listen", "127.0.0.1:0",
            "--worker-home", str(home),
        )  # fmt: skip
        agent = json.loads(await until_said(log, r"(\{.*\})"))["listen"]
        yield ClosedSite(
            addresses=Addresses(
                users=users,
                workers=workers,
                planner=planner,
                agent=agent,
                agent_socket=f"unix:{folder / 'b' / 'agent.sock'}",
            ),
            trusted=signer.trusted_pem,
            worker=held_by(signer, WORKER),
            tokens=await tokens_of_callers(engine),
            pids=pids,
        )


def start_command(
    log: Path, environment: Mapping[str, str], memory_bytes: int | None, *arguments: str
) -> "subprocess.Popen[bytes]":
    """A command of `headrace`, with its output in a log."""
    with log.open("ab") as out:
        return subprocess.Popen(
            limited(memory_bytes, sys.executable, "-m", "headrace.cli", *arguments),
            stdout=out,
            stderr=subprocess.STDOUT,
            env={**os.environ, "OMP_NUM_THREADS": "1", "PYTHONUNBUFFERED": "1", **environment},
        )


async def until_said(log: Path, pattern: str) -> str:
    """What a pattern finds in a log, once it does."""
    async with asyncio.timeout(STARTS_WITHIN_S):
        while (found := re.search(pattern, await asyncio.to_thread(log.read_text))) is None:
            await asyncio.sleep(0.05)
    return found[1]


async def end_command(process: "subprocess.Popen[bytes]") -> None:
    """Stop a command, by force if it does not end."""
    process.terminate()
    try:
        await asyncio.to_thread(process.wait, 20)
    except subprocess.TimeoutExpired:
        process.kill()
        process.wait()
