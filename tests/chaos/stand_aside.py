"""Limits what the simulated machines take from the cluster under test.

A fleet of simulated workers represents other machines, but shares this one with the scheduler. If the kernel
schedules by groups (autogroups: one for each session of processes), the fleet's session gets a low priority: a
tenth of the weight of the cluster, which `headrace up` starts in sessions of their own. The lowest priority, a
seventieth, starved the fleet next to other work, and its workers lost their leases.
"""

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")
LOW = 10


@contextmanager
def standing_aside(autogroup: Path = _AUTOGROUP) -> Iterator[bool]:
    """Lower the priority of this process's session until the block ends. Yields whether the kernel accepted it."""
    try:
        before = autogroup.read_text().split()[-1]
        autogroup.write_text(f"{LOW}\n")
    except (OSError, IndexError):
        yield False
        return
    try:
        yield True
    finally:
        with suppress(OSError):
            autogroup.write_text(f"{before}\n")
