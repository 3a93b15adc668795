"""The daemon as a process of its own."""

import asyncio
import os
import sys
from pathlib import Path

import psutil
from worker_site import Site

COMMAND = "import typer; from headrace_worker.command import worker; app = typer.Typer(); app.command()(worker); app()"


class DaemonProcess:
    """Starts `headrace worker` processes on one site."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self.processes: list[asyncio.subprocess.Process] = []

    async def start(
        self, *further: str, home: Path | None = None, first: str = ""
    ) -> asyncio.subprocess.Process:
        """Starts one with further options, that runs these statements first."""
        settings = self.site.settings
        log = (self.site.root / "daemon.log").open("ab")
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-c", first + COMMAND, "--scheduler", self.site.scheduler.address),
            *("--name", settings.name, "--home", str(home or settings.home), "--store", settings.store_url),
            *("--cpu-slots", "2", "--stop-grace", "3", *further),
            stdout=log,
            stderr=log,
            env={**os.environ, "MARKS": str(self.site.marks)},
        )
        log.close()
        self.processes.append(process)
        return process

    async def end(self) -> None:
        """Kill the processes that still run."""
        for process in self.processes:
            if process.returncode is None:
                process.kill()
                await process.wait()


def children(daemon: asyncio.subprocess.Process) -> list[psutil.Process]:
    """The daemon's children, zombies included."""
    return psutil.Process(daemon.pid).children()


def memory_bytes(daemon: asyncio.subprocess.Process) -> int:
    """How much of the machine's memory the daemon holds."""
    return int(psutil.Process(daemon.pid).memory_info().rss)
