"""Where two runs diverge, and which metrics are left out of the comparison. Pure functions."""

import re
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from headrace.check.compare import end_difference, first_difference, metric_differences
from headrace.check.gangs import Ranks, chain_of, first_of
from headrace.check.report import Difference
from headrace.check.snapshot import SegmentResult

_MEASURED = re.compile(
    r"(?:^|[^a-z])(?:time|times|timestamp|runtime|walltime|wall|elapsed|duration|eta|secs?|seconds?|ms|latency"
    r"|throughput|speed|fps|rss|mem|memory|mb|gb|mib|gib)(?:[^a-z]|$)",
    re.IGNORECASE,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Judged:
    """Where a run diverges from the straight one."""

    trajectory: Difference | None = None
    end: Difference | None = None

    @property
    def first(self) -> Difference | None:
        """The first difference; None if there is none."""
        return self.trajectory or self.end

    @classmethod
    def of(cls, straight: Ranks, chain: Sequence[Ranks], *, whole: bool = True) -> "Judged":
        """Compares the runs of all ranks; if the chain is not `whole`, up to where it was stopped."""
        world = len(straight)
        if not whole:
            reports = first_of(
                world,
                lambda rank: first_difference(straight[rank], chain_of(chain, rank), to_the_end=False),
            )
            return cls(trajectory=reports)
        end = first_of(world, lambda rank: end_difference(straight[rank], chain_of(chain, rank)))
        # If the runs have different lengths, only what both reported is compared.
        trajectory = first_of(
            world,
            lambda rank: first_difference(straight[rank], chain_of(chain, rank), to_the_end=end is None),
        )
        return cls(trajectory=trajectory, end=end)


def noise_of(straight: Ranks, again: Ranks) -> tuple[Difference, ...]:
    """The metrics that differ between two straight runs, each where it first does; empty if anything else
    differs too.
    """
    found = tuple(
        {
            difference.what: difference
            for one, other in zip(straight, again, strict=True)
            for difference in metric_differences(one, other)
        }.values()
    )
    names = {difference.what for difference in found}
    if Judged.of(without(straight, names), [without(again, names)]).first is not None:
        return ()
    return found


def is_measured(name: str) -> bool:
    """Whether a metric is, by its name, a time, a speed or a memory size, which differ in each run."""
    return _MEASURED.search(name) is not None


def without(results: Ranks, names: Collection[str]) -> Ranks:
    """The results without these metrics."""
    return tuple(_without(result, names) for result in results) if names else results


def metrics_of(results: Iterable[SegmentResult]) -> tuple[str, ...]:
    """The names of all reported metrics."""
    return tuple(sorted({name for one in results for reported in one.reports for name in reported.metrics}))


def files_read(chain: Iterable[Ranks]) -> tuple[str, ...]:
    """The files in the folder that a process reads as an earlier process of the run left them."""
    return tuple(sorted({name for results in chain for result in results for name in result.files.read}))


def _without(result: SegmentResult, names: Collection[str]) -> SegmentResult:
    reports = tuple(
        replace(one, metrics={name: value for name, value in one.metrics.items() if name not in names})
        for one in result.reports
    )
    return replace(result, reports=reports)
