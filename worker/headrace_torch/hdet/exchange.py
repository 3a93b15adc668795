"""The one small collective at the start of a sync: what every replica observed, and whether the sync can continue.

First the values of each replica's ranks are added up, then all replicas' sums are gathered. So every rank of the
job sees the same rows and decides the same, an error included: nothing that follows can be entered by some ranks
only. A rank whose probe raised still takes part, and says so.
"""

import math
import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from torch import Tensor

from headrace_torch.hdet.averaging import all_finite
from headrace_torch.hdet.errors import HdetConfigError, SyncError
from headrace_torch.hdet.fingerprint import of_text, projection
from headrace_torch.hdet.losses import LossMeter
from headrace_torch.hdet.probe import Probe
from headrace_torch.hdet.replicas import ReplicaGroup

ROUNDING = 1e-3
"""Shared gradients may differ by this fraction of their norm, as after clipping on GPUs of several types."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Exchange:
    """What every rank knows after the exchange.

    Attributes:
        losses: the losses by which replicas are scored; `None` if nothing was observed.
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
    step: int,
    rates: Sequence[float],
    gradients: Literal["shared", "local", "either"],
    layout: int = 0,
) -> Exchange:
    """Scores this replica and receives the others' scores. A collective.

    Args:
        group: the replicas.
        meter: the training losses of the interval.
        probe: if given, it scores replicas in place of the training loss.
        parameters: what will be averaged; checked for NaN and infinities.
        sync: the number that the probe's batch is requested with.
        step: the optimizer steps that this rank has taken.
        rates: the schedule's rates, which are the same on every replica.
        gradients: what the gradients of the last step must be. Gradients that are gone by now are not compared.
        layout: a whole number below 2^40 that must be the same on the same part of each replica.

    Raises:
        SyncError: on every rank, if a probe failed, ranks are at different steps, replicas saw different batches,
            rates or layouts, or no replica is finite.
        HdetConfigError: on every rank, if gradients are not what `gradients` says.
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
    told = float(of_text(repr(list(rates))))
    mine = [
        total,
        weight,
        probed,
        1.0,
        broken,
        float(failure is not None),
        fingerprint,
        float(layout),
        float(step),
    ]
    mine += [told, *projection(one.grad for one in parameters)]
    rows = group.gather(group.add_within(mine))
    if len({row[8] for row in rows}) > 1:
        steps = ", ".join(f"replica {r} {row[8] / row[3]:.0f}" for r, row in enumerate(rows))
        raise SyncError(
            f"replicas meet at a sync point after different numbers of steps: {steps}; call the scheduler's step() "
            "once after each optimizer step on every rank, and give all ranks the same number of batches"
        )
    if any(row[5] for row in rows):
        problem = None if failure is None else f"the probe failed at sync {sync}: {failure}"
        group.agree(problem=problem, config={}, error=SyncError)
    if len({row[6] for row in rows}) > 1:
        raise SyncError(
            f"replicas were given different probe batches at sync {sync}: scores on different batches "
            "cannot be compared; make the batch a function of only the sync's number"
        )
    if len({row[7] for row in rows}) > 1:
        raise SyncError(f"replicas' optimizers hold different state at sync {sync}, so it cannot be averaged")
    if len({row[9] for row in rows}) > 1:
        group.agree(
            problem=None, config={f"the schedule's rates at step {step}": list(rates)}, error=SyncError
        )
    if problem := _gradients_problem([(row[10], row[11]) for row in rows], gradients):
        raise HdetConfigError(problem)
    sources = tuple(r for r, row in enumerate(rows) if not row[4])
    if not sources:
        raise SyncError(
            f"no replica has finite parameters at sync {sync}; lower the learning rate and restart from a checkpoint"
        )
    if probe is not None:
        losses: tuple[float | None, ...] = tuple(row[2] / row[3] for row in rows)
    else:
        losses = tuple(row[0] / row[1] if row[1] > 0 else None for row in rows)
    return Exchange(losses=losses, sources=sources)


def require_shared_gradients(group: ReplicaGroup, parameters: Sequence[Tensor]) -> None:
    """Raises on every rank unless replicas have stepped with the same gradients. A collective.

    Gradients that are gone by now are not compared.

    Raises:
        HdetConfigError: they have not.
    """
    rows = group.gather(group.add_within(projection(one.grad for one in parameters)))
    if problem := _gradients_problem([(row[0], row[1]) for row in rows], "shared"):
        raise HdetConfigError(problem)


def _gradients_problem(
    found: Sequence[tuple[float, float]], expected: Literal["shared", "local", "either"]
) -> str | None:
    """Judges a projection of each replica's gradients, with its norm."""
    norms = [norm for _, norm in found]
    if expected == "either" or not all(math.isfinite(norm) and norm > 0 for norm in norms):
        return None
    apart = (max(product for product, _ in found) - min(product for product, _ in found)) / max(norms)
    if expected == "shared" and apart > ROUNDING:
        return (
            "replicas step on different gradients, and shared ones are expected: wrap the model in "
            "DistributedDataParallel and call the wrapped model; for replicas with separate gradients "
            "use HDETController with mode='local_grad'"
        )
    if expected == "local" and apart == 0:
        return (
            "replicas step on the same gradients under mode='local_grad': DistributedDataParallel averages them; "
            "train the model without it, or under its no_sync(), or use mode='shared_grad'"
        )
    return None
