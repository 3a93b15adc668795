"""The resumed run of a check: its processes on all ranks, and what they reveal about a pause. Pure."""

from collections.abc import Collection, Sequence
from dataclasses import dataclass, replace

from headrace.check import lost_files
from headrace.check.compare import losses
from headrace.check.failures import explained
from headrace.check.gangs import Ranks, by_rank, chain_of
from headrace.check.judge import without
from headrace.check.report import Missing
from headrace.check.snapshot import SegmentResult
from headrace.check.suspects import resets, suspects


@dataclass(frozen=True, slots=True, kw_only=True)
class ResumedRun:
    """The processes, each resumed from the previous one, until the run ended or was stopped."""

    chain: Sequence[Ranks]
    # Whether each process runs in a copy of the folder, which is deleted when it ends.
    is_copy: bool
    # The process that failed after these; in a gang, that of the rank that failed first.
    failure: SegmentResult | None = None
    # What else is known to have stopped them.
    stopped: tuple[Missing, ...] = ()
    # Whether the time limit ended them.
    out_of_time: bool = False

    @property
    def broken(self) -> bool:
        """Whether the run did not reach its end."""
        return self.failure is not None or bool(self.stopped)

    @property
    def resumed_at(self) -> tuple[int, ...]:
        """The steps from which its processes were resumed, without the process that failed."""
        return tuple(one[0].resume_step for one in self.chain if one[0].resume_step)

    def without(self, names: Collection[str]) -> "ResumedRun":
        """The same run without these metrics."""
        last = None if self.failure is None else without((self.failure,), names)[0]
        return replace(self, chain=[without(results, names) for results in self.chain], failure=last)

    def lost(self, straight: Ranks, again: Ranks | None = None) -> tuple[Missing, ...]:
        """What stopped the run, and what each restore loses. With the unpaused run `again`, only what is lost
        for good.
        """
        lost = by_rank(
            len(straight), lambda rank: losses(self._of(rank), again[rank] if again is not None else None)
        )
        if self.failure is not None:
            lost = explained(self.failure, lost, self.resets(straight))
        return (*lost, *self.stopped)

    def resets(self, straight: Ranks) -> tuple[Missing, ...]:
        """What a restore resets, whether or not anything depends on it."""

        def of_rank(rank: int) -> tuple[Missing, ...]:
            files = lost_files.not_rebuilt(straight[rank], self._of(rank)) if self.is_copy else ()
            return (*resets(straight[rank], self._of(rank)), *files)

        return by_rank(len(straight), of_rank)

    def suspects(self, straight: Ranks, again: Ranks) -> tuple[Missing, ...]:
        """What may explain why the runs diverge."""

        def of_rank(rank: int) -> tuple[Missing, ...]:
            chain = self._of(rank)
            suspected = suspects(straight[rank], chain, again[rank])
            if not self.is_copy:
                return suspected
            found = (*lost_files.read_later(straight[rank], chain), *suspected)
            return found or lost_files.all_written(straight[rank], chain)

        return by_rank(len(straight), of_rank)

    def _of(self, rank: int) -> Sequence[SegmentResult]:
        """The processes of one rank, including the one that failed."""
        failed = () if self.failure is None or (self.failure.rank or 0) != rank else (self.failure,)
        return (*chain_of(self.chain, rank), *failed)
