"""Bundles that run out of memory: what the kernel counts, what a process says last, and with how many members."""

from pathlib import Path

import pytest
from bundle_site import started
from scripted_scheduler import ScriptedScheduler
from worker_site import Site

from headrace.v1 import worker_pb2
from headrace_worker.memory import KernelKills, counters, killed_for_memory, says_out_of_memory

LOST = worker_pb2.EXIT_OUTCOME_LOST


async def test_a_process_under_a_memory_limit_says_with_how_many_members_it_ran_out(
    site: Site, scheduler: ScriptedScheduler
) -> None:
    body = """
import resource
say([report(lease, save=True) for lease in free()])
while len(members) < 3:
    say()
pages = int(Path("/proc/self/statm").read_text().split()[0])
limit = pages * resource.getpagesize() + (64 << 20)
resource.setrlimit(resource.RLIMIT_AS, (limit, limit))
held = [bytearray(32 << 20) for lease in members]
"""
    bundle = await started(site, scheduler, body)
    members = [bundle.start(n) for n in (1, 2, 3)]
    for member in members:
        exited = await bundle.exited(member)
        assert (exited.outcome, exited.out_of_memory) == (LOST, 3), exited.error
        assert (
            exited.error
            == "its bundle of 3 trials ran out of memory: exit status 1; last output: MemoryError"
        )


@pytest.mark.parametrize(
    ("code", "before", "now", "killed"),
    [(-9, 3, 4, True), (-9, 3, 3, False), (-15, 3, 4, False), (1, 3, 4, False)],
)
def test_the_kernel_s_count_identifies_an_out_of_memory_kill(
    tmp_path: Path, code: int, before: int, now: int, killed: bool
) -> None:
    events = tmp_path / "memory.events"
    kills = KernelKills(file=events)
    events.write_text(f"low 0\noom 9\noom_kill {before}\noom_group_kill 0\n")
    first = kills.count()
    events.write_text(f"low 0\noom 9\noom_kill {now}\n")
    assert killed_for_memory(code, first, kills.count()) is killed
    events.unlink()
    assert kills.count() == 0
    assert KernelKills.of_this_process().count() >= 0


@pytest.mark.parametrize(
    ("own", "first"),
    [
        ("0::/system.slice/worker.service", "/sys/fs/cgroup/system.slice/worker.service/memory.events"),
        ("9:cpu,cpuacct:/a\n4:memory:/b/c\n", "/sys/fs/cgroup/memory/b/c/memory.oom_control"),
        ("", "/sys/fs/cgroup/memory.events"),
    ],
)
def test_the_kernel_counts_for_the_worker_s_own_control_group(own: str, first: str) -> None:
    files = list(counters(own))
    assert str(files[0]) == first
    assert str(files[-1]) == "/proc/vmstat"


@pytest.mark.parametrize(
    ("line", "says"),
    [
        ("MemoryError", True),
        ("numpy._core._exceptions._ArrayMemoryError: Unable to allocate 1 GiB", True),
        ("torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2 GiB", True),
        ("headrace_torch.hydro.fuse.errors.OutOfMemoryError: cuda:0 has too little memory", True),
        ("RuntimeError: [enforce fail] DefaultCPUAllocator: can't allocate memory", True),
        ("OSError: [Errno 12] Cannot allocate memory", True),
        ("ValueError: the memory of an elephant", False),
        ("", False),
    ],
)
def test_last_words_that_tell_of_too_little_memory(line: str, says: bool) -> None:
    assert says_out_of_memory(line) is says
