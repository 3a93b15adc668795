"""SIGTERM when the worker is a batch job: Slurm sends it to every process of the job, trials included.

The worker drains, so its trials must live until their next reports. `headrace.trial.job_signals` ignores SIGTERM in
them until the worker has set the mark of the process, which it does before it sends SIGTERM itself. The mark is a
nameless file that the process inherits: its number is in the variable `VARIABLE`.

A program that does not use `headrace.trial` dies of the signal, or ends as its own handler wants. Nobody is charged for
that either (`Place.judged`).
"""

import os
from collections.abc import Mapping
from contextlib import suppress

from headrace.grants import TERM_MARK, TERM_MARK_FILE

VARIABLE = TERM_MARK
_OF_JOBS = ("SLURM_JOB_ID",)


def in_batch_job(environ: Mapping[str, str]) -> bool:
    """Whether this process belongs to a batch job."""
    return any(name in environ for name in _OF_JOBS)


class TermMark:
    """The mark of one process."""

    def __init__(self) -> None:
        self.descriptor = os.memfd_create(TERM_MARK_FILE, os.MFD_CLOEXEC)

    @property
    def variables(self) -> dict[str, str]:
        """What the process needs to find it."""
        return {VARIABLE: str(self.descriptor)}

    def set(self) -> None:
        """From now on SIGTERM is the worker's."""
        with suppress(OSError):  # closed: the process is gone
            os.pwrite(self.descriptor, b"1", 0)

    def close(self) -> None:
        """The process is gone. May be repeated."""
        descriptor, self.descriptor = self.descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)
