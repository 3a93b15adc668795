"""A bundle of one on top of an ordinary trial's runtime: runs a bundle's function without `fuse`."""

from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat
from headrace.trial.runtime import TOLD, Action, Assignment, Decision, OwnEnd, Runtime

_LEASE = "alone"


class SoloBundle:
    """One member, which waits for each decision."""

    def __init__(self, runtime: Runtime, assignment: Assignment | None = None) -> None:
        self._assignment = assignment
        self._runtime = runtime
        self._over = self._finished = self._failed = False

    def attach(self) -> Attached:
        """The trial."""
        assignment = self._assignment or self._runtime.attach()
        return Attached(members=(Seat(lease=_LEASE, assignment=assignment),), seats=1)

    def turn(self, said: Said) -> Answer:
        """Sends everything, and waits for the decision."""
        decisions: list[tuple[str, Decision]] = []
        for _, read_time_s in said.restored:
            self._runtime.restored(read_time_s=read_time_s)
        for lease, report in said.reports:
            decision = self._runtime.report(report)
            decisions.append((lease, decision))
            self._over |= decision.action is not Action.CONTINUE
        for one in said.finished:
            self._end(one.error, one.traceback, one.own)
            self._over = True
        return Answer(decisions=tuple(decisions), over=self._over)

    def finish(self, end: Ended) -> None:
        """The program ended. Raises `SystemExit` with status 1 if its member had failed before."""
        self._end(end.error, end.traceback)
        if self._failed and not end.error:
            raise SystemExit(1)

    def _end(self, error: str, traceback: str, own: OwnEnd = TOLD) -> None:
        if not self._finished:
            self._runtime.finish(error=error, traceback=traceback, own=own)
            self._finished, self._failed = True, bool(error)
