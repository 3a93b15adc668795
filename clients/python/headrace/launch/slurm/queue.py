"""What squeue prints, as members of a launch. Pure."""

import re
from collections.abc import Iterator
from typing import Final

from headrace.launch.engine import EngineError, Member, Stage

FORMAT: Final = "%F|%K|%t|%r|%j"
"""The array's job id, the task's index, the state, the reason and the name, which is last because it may hold
anything."""
_PENDING: Final = frozenset({"PD", "RQ", "RH", "RD", "SE", "RF", "RS"})
"""The states of jobs that run nothing; in all others, also while it completes, a job may have processes."""
_OVER: Final = frozenset({"BF", "CA", "CD", "DL", "F", "NF", "OOM", "PR", "TO"})
_HELD: Final = "JobHeldUser"
"""What `scontrol uhold` leaves. An administrator's hold is another reason, and is not ours to undo."""
_NAME: Final = re.compile(r"headrace-(.+)-(\d{1,9})")


def job_name(launch: str, seat: int) -> str:
    """The name of the job on a seat."""
    return f"headrace-{launch}-{seat}"


def worker_name(job: str, seat: int) -> str:
    """The name of its worker."""
    return f"slurm-{job}-{seat}"


def members(text: str, launch: str) -> Iterator[Member]:
    """The members of a launch in the output of `squeue --noheader --array -o FORMAT`, oldest first. Raises
    `EngineError` if the first line is none of a job. Later ones may be the rest of a name with a line break.
    """
    found = []
    for number, line in enumerate(filter(None, map(str.strip, text.split("\n")))):
        parts = line.split("|", 4)
        if len(parts) != 5:
            if number == 0:
                raise EngineError(f"squeue printed a line that cannot be read: {line!r}")
            continue
        job, task, state, why, name = parts
        match = _NAME.fullmatch(name)
        if match is None or match[1] != launch or state in _OVER:
            continue
        if not (job.isdecimal() and task.isdecimal()):  # someone else's job with one of our names
            continue
        stage = Stage.PENDING if state in _PENDING else Stage.RUNNING
        found.append(
            Member(
                seat=int(match[2]),
                id=f"{job}_{task}",
                stage=stage,
                worker=worker_name(job, int(task)),
                why=why if stage is Stage.PENDING and why != "None" else "",
                held=stage is Stage.PENDING and why == _HELD,
            )
        )
    yield from sorted(found, key=lambda member: int(member.id.partition("_")[0]))
