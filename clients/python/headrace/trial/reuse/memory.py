"""Memory that a process has not given back after a trial.

A process may hold a quarter more than after its first trial, or 256 MiB, whichever is more. Allocators and
libraries keep tens of megabytes, which vary from trial to trial; the data or the model of a trial that stays alive
is soon more. The first trial is left out, because it imports and warms up what stays for good.
"""

import ctypes
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

MOST_GROWTH: Final = 0.25
LEAST_GROWTH_BYTES: Final = 256 << 20
MOST_OF_GPU_BYTES: Final = 64 << 20
"""What PyTorch's allocator may still hold for live tensors on a GPU: tables and workspaces of libraries, but no
model that is worth a trial's time."""
_KIB: Final = 1024


class Memory:
    """The memory of the process after its first trial, and of GPUs before it."""

    def __init__(self) -> None:
        self._first: int | None = None
        self._of_gpus: list[int] = []

    def take(self) -> None:
        """From now on, what is allocated on GPUs is to be."""
        self._of_gpus = _allocated()

    def grown(self) -> str:
        """Why the process holds too much; empty if it does not."""
        for device, now in enumerate(_allocated()):
            before = self._of_gpus[device] if device < len(self._of_gpus) else 0
            if now - before > MOST_OF_GPU_BYTES:
                return (
                    f"it left {_told(now - before)} of tensors on GPU {device}: drop every reference to them before "
                    "the function returns"
                )
        now = resident_bytes()
        if self._first is None:
            self._first = now
        most = self._first + max(LEAST_GROWTH_BYTES, int(self._first * MOST_GROWTH))
        if now > most:
            with suppress(AttributeError, OSError):
                ctypes.CDLL(None).malloc_trim(0)
            now = resident_bytes()
        if now > most:
            return (
                f"its memory grew from {_told(self._first)} after the first trial to {_told(now)}: a library or "
                "a module keeps what the trials made"
            )
        return ""


def resident_bytes() -> int:
    """The memory of this process alone, without the files that it has mapped; 0 if unknown."""
    with suppress(OSError):
        lines = Path("/proc/self/status").read_text().splitlines()
        named = dict(line.split(":", 1) for line in lines if line.startswith(("RssAnon", "RssShmem")))
        return sum(int(value.split()[0]) for value in named.values()) * _KIB
    return 0


def empty_cache() -> None:
    """Gives back what PyTorch's allocator holds on GPUs and nothing uses."""
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return
    with suppress(AttributeError):
        torch._C._cuda_clearCublasWorkspaces()  # they come from the same allocator
    torch.cuda.empty_cache()


def _allocated() -> list[int]:
    torch: Any = sys.modules.get("torch")
    if torch is None or not torch.cuda.is_initialized():
        return []
    return [int(torch.cuda.memory_allocated(device)) for device in range(torch.cuda.device_count())]


def _told(size: int) -> str:
    return f"{size / (1 << 30):.1f} GiB" if size >= 1 << 30 else f"{size >> 20} MiB"
