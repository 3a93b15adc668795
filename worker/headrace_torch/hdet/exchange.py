"""The one small collective at the head of a sync: what every replica observed, and whether the sync can go on.

Each rank first adds up what the ranks of its replica say, then all replicas' sums are gathered. So every
rank of the job sees the same rows and decides the same, an error included: nothing that follows can be
entered by some ranks only. A rank whose probe raised still takes part, and says so.
"""

import traceback
from collections.abc import Sequence
from dataclasses import dataclass

from torch import Tensor

from headrace_torch.hdet.averaging import all_finite
from headrace_torch.hdet.errors import SyncError
from headrace_torch.hdet.losses import LossMeter
from headrace_torch.hdet.probe import Probe
from headrace_torch.hdet.replicas import ReplicaGroup


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What every rank knows after the exchange.

    Attributes:
        losses: by which replicas are scored; `None` where nothing was observed.
        sources: replicas with finite parameters, whose mean is taken.
    """

    losses: tuple[float | None, ...]
    sources: tuple[int, ...]


def exchange(
    group: ReplicaGroup,
    meter: LossMeter,
    probe: Probe | None,
    parameters: Sequence[Tensor],
    *,
    sync: int,
    layout: int = 0,
) -> Exchange:
    """Scores this replica and hears of the others. A collective.

    Args:
        group: the replicas.
        meter: the training losses of the interval.
        probe: scores in place of the training loss, if given.
        parameters: what will be averaged; looked through for NaN and infinities.
        sync: the number that the probe's batch is asked for.
        layout: a whole number below 2^40 that must be the same on the same part of each replica.

    Raises:
        SyncError: on every rank, if a probe failed, replicas saw different batches or layouts, or no replica
            is finite.
    """
    failure: str | None = None
    probed = fingerprint = 0.0
    if probe is not None:
        try:
            probed, fingerprint = probe.score(sync)
        except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for a word
            failure = "".join(traceback.format_exception_only(error)).strip()
    total, weight = meter.read()
    broken = 0.0 if all_finite(parameters) else 1.0
    mine = [total, weight, probed, 1.0, broken, float(failure is not None), fingerprint, float(layout)]
    rows = group.gather(group.add_within(mine))
    if any(row[5] for row in rows):
        problem = None if failure is None else f"the probe failed at sync {sync}: {failure}"
        group.agree(problem=problem, config={}, error=SyncError)
    if len({row[6] for row in rows}) > 1:
        raise SyncError(
            f"replicas were given different probe batches at sync {sync}: scores on different batches "
            "cannot be compared; make the batch a function of the sync's number alone"
        )
    if len({row[7] for row in rows}) > 1:
        raise SyncError(f"replicas' optimizers hold different state at sync {sync}, so it cannot be averaged")
    sources = tuple(r for r, row in enumerate(rows) if not row[4])
    if not sources:
        raise SyncError(
            f"no replica has finite parameters at sync {sync}; lower the learning rate and go back to a checkpoint"
        )
    if probe is not None:
        losses: tuple[float | None, ...] = tuple(row[2] / row[3] for row in rows)
    else:
        losses = tuple(row[0] / row[1] if row[1] > 0 else None for row in rows)
    return Exchange(losses=losses, sources=sources)
