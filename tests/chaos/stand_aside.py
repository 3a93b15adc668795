"""Let what plays other machines take no core from the cluster under test.

A fleet of simulated workers stands for machines of their own, and it shares this one with the scheduler. Where the
kernel schedules by groups (autogroups: one for each session of processes), the fleet's session is given a low
priority, and the cluster, which `headrace up` starts in sessions of its own, runs whenever it is ready.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_AUTOGROUP = Path("/proc/self/autogroup")
LOW = 10


@contextmanager
def standing_aside(autogroup: Path = _AUTOGROUP) -> Iterator[bool]:
    """Lower the priority of this process's session until the block ends. Yields whether the kernel did so."""
    try:
        before = autogroup.read_text().split()[-1]
        autogroup.write_text(f"{LOW}\n")
    except (OSError, IndexError):
        yield False
        return
    try:
        yield True
    finally:
        autogroup.write_text(f"{before}\n")
