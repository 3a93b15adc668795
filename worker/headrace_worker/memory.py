"""Whether a process ended because memory ran out: what the process says, and what the kernel says.

A program that notices says so itself. One that cannot, because an allocation failed below Python or the kernel
killed it, is recognised by its last words, or by the kernel's count of processes that it killed because memory ran
out.
"""

import re
import signal
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

_SAYS = re.compile(
    r"(OutOfMemoryError|MemoryError|std::bad_alloc|CUBLAS_STATUS_ALLOC_FAILED|DefaultCPUAllocator: )"
    r"|CUDA (error: )?out of memory|Cannot allocate memory|not enough memory"
)
_CGROUPS = Path("/sys/fs/cgroup")
_VMSTAT = Path("/proc/vmstat")


def says_out_of_memory(line: str) -> bool:
    """Whether the last line of a program reports a failed allocation."""
    return _SAYS.search(line) is not None


@dataclass(frozen=True, slots=True, kw_only=True)
class KernelKills:
    """The kernel's count of processes that it killed because memory ran out: in the worker's control group, or on
    the machine if that is unknown. If neither is known, the count stays 0 and proves nothing."""

    file: Path | None

    @classmethod
    def of_this_process(cls) -> "KernelKills":
        """The count that covers the processes which this one starts."""
        try:
            own = Path("/proc/self/cgroup").read_text()
        except OSError:
            own = ""
        return cls(file=next((file for file in counters(own) if _count(file) is not None), None))

    def count(self) -> int:
        """How many there have been."""
        return (_count(self.file) or 0) if self.file else 0


def counters(own: str) -> Iterator[Path]:
    """The files that may hold the count, the narrowest first. `own` is what the kernel says about a process's
    control groups: a container may see its own as the root."""
    for line in own.splitlines():
        _, kinds, path = line.split(":", 2)
        if not kinds:  # version 2
            yield _CGROUPS / path.strip("/") / "memory.events"
        elif "memory" in kinds.split(","):
            yield _CGROUPS / "memory" / path.strip("/") / "memory.oom_control"
    yield _CGROUPS / "memory.events"
    yield _CGROUPS / "memory" / "memory.oom_control"
    yield _VMSTAT


def killed_for_memory(exit_code: int, kills_before: int, kills_now: int) -> bool:
    """Whether the kernel killed a process because memory ran out: the process was killed, and the count has grown
    since its start."""
    return exit_code == -signal.SIGKILL and kills_now > kills_before


def _count(file: Path) -> int | None:
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return None
    found = [line.split() for line in lines if line.startswith("oom_kill ")]
    return int(found[0][1]) if found else None
