"""How long a trial that failed here waits before it starts here again.

A program that fails at once would otherwise fail again and again within a second, and so use up its retries on a
problem that passes (a file server that restarts, a port that is still taken). The wait doubles with every failure
in a row on this worker. A report, or any other end, resets it.
"""

from collections import OrderedDict

from headrace.v1 import worker_pb2

_FIRST_S = 1.0
_LONGEST_S = 30.0
_REMEMBERED = 1024


def trial_key(assign: worker_pb2.Assign) -> str:
    """Identifies the trial: trials of other projects may have the same name."""
    return f"{assign.study_uid}/{assign.lease.trial}"


class Retries:
    """Failures in a row, by trial (`trial_key`). The oldest entries are dropped."""

    def __init__(self) -> None:
        self._failures: OrderedDict[str, int] = OrderedDict()

    def failed(self, trial: str) -> None:
        """The trial's program failed before it had reported anything in this attempt."""
        self._failures[trial] = self._failures.pop(trial, 0) + 1
        while len(self._failures) > _REMEMBERED:
            self._failures.popitem(last=False)

    def went_on(self, trial: str) -> None:
        """The trial reported, or it ended otherwise."""
        self._failures.pop(trial, None)

    def wait_s(self, trial: str) -> float:
        """How long its next attempt here waits, in seconds; 0 for a trial that has not failed."""
        failures = self._failures.get(trial, 0)
        return min(_LONGEST_S, _FIRST_S * 2 ** min(failures - 1, 10)) if failures else 0.0
