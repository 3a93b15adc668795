"""Fits a cluster's constants to measured rows.

Log-errors are minimised with a soft-L1 loss: a measured run that something else slowed down must not bend the
rest. A pull towards the start values keeps a constant near its physical value if few rows give evidence for it.
Decision 0025 settled how strong the pull is, by leaving widths out. All constants are positive; shares of a peak
are below 1.

Formulas are smooth in the sizes of a layer and kernels are not. So blocks and heads of a shape that several rows
share then get a separate factor (`MeasuredShape`), pulled towards 1. Factors are fitted second: fitted together
with the constants, they would absorb what the formulas should explain, and unmeasured shapes would be predicted
worse.
"""

from collections.abc import Mapping
from dataclasses import asdict, dataclass, replace
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy.optimize import least_squares

from headrace_services.planner.blocks import dense_block, head
from headrace_services.planner.cluster import Cluster, Efficiencies, MeasuredShape
from headrace_services.planner.measured import Rows, predicted_s
from headrace_services.planner.model import LayerKind


@dataclass(frozen=True, slots=True)
class Range:
    """The range of a constant, its start value, and how strongly it is held there."""

    start: float
    low: float
    high: float
    hold: float = 0.5


RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "gemm": Range(0.75, 0.4, 0.9),
        "gemm_rows": Range(300, 1, 5000),
        "gemm_width": Range(50, 0.1, 3000),
        "attention": Range(0.5, 0.1, 1.0),
        "memory": Range(0.8, 0.3, 1.0),
        "link": Range(0.7, 0.1, 1.0),
        "network": Range(0.5, 0.05, 1.0),
        "gradients": Range(0.5, 0.05, 1.0),
        "gradients_shared": Range(1.0, 0.05, 1.5),
        "transfer": Range(0.6, 0.05, 1.0),
        "launch_s": Range(9e-4, 1e-4, 1e-2),
        "launch_tensor_s": Range(5e-5, 1e-6, 1e-2),
        "launch_rank_s": Range(1e-5, 1e-7, 1e-3),
        "launch_unfused_s": Range(3e-4, 1e-5, 1e-2),
        "launch_backward": Range(1.5, 1.0, 3.0),
        "head_traffic": Range(24, 2, 100),
        "head_s": Range(5e-4, 1e-6, 1e-2),
        "collective_s": Range(1e-5, 1e-6, 1e-3, hold=1.0),
        "transfer_s": Range(5e-4, 1e-6, 1e-2),
        "transfer_network_s": Range(1e-4, 1e-6, 1e-1),
        "iteration_s": Range(5e-3, 1e-5, 0.1),
        "optimizer": Range(0.6, 0.2, 1.0),
    }
)
OVERLAP_RANGES: Final[Mapping[str, Range]] = MappingProxyType(
    {
        "overlap_gradients": Range(0.8, 0.01, 1.0, hold=0.01),
        "overlap_tensor": Range(0.3, 0.01, 1.0, hold=0.01),
        "overlap_optimizer": Range(0.8, 0.01, 1.0, hold=0.01),
    }
)
"""The ratios for rows with overlap. A ratio for which no row gives evidence stays 0, which means no overlap."""
FIRST_RATIO: Final = 0.03
SCALE: Final = 0.05
"""The log-error from which the loss grows linearly."""
SPREAD: Final = 0.1
"""The log-error by which kernels of one shape usually differ from the formulas."""
LEAST_ROWS: Final = 3
"""How many rows must share a shape before it gets a factor: fewer cannot separate its time from their own noise."""
SHAPE: Final = ("hidden", "heads", "seq", "tp", "micro_batch")


def start() -> Efficiencies:
    """The constants before any fit: physics and guesses."""
    values: dict[str, Any] = {name: one.start for name, one in RANGES.items()}
    return Efficiencies(**values)


def fit(rows: Rows, cluster: Cluster) -> Efficiencies:
    """The constants, and then the shapes' factors, that best predict the rows. Deterministic."""
    constants = _constants(rows, cluster)
    return replace(constants, shapes=_factors(rows, cluster.with_efficiencies(constants)))


def overlaps_told(rows: Rows) -> dict[str, Range]:
    """The ratios for which these rows give evidence: those of patterns that occur in them, in jobs that overlap."""
    overlap = rows.told("overlap") > 0
    tells = {
        "overlap_gradients": overlap & (rows["dp"] > 1),
        "overlap_tensor": overlap & (rows["tp"] > 1),
        "overlap_optimizer": overlap & (rows["dp"] > 1) & (rows.told("sharded") > 0),
    }
    return {name: one for name, one in OVERLAP_RANGES.items() if tells[name].any()}


def _constants(rows: Rows, cluster: Cluster) -> Efficiencies:
    ranges = {**RANGES, **overlaps_told(rows)}
    names = list(ranges)
    first = np.log([ranges[name].start for name in names])
    low, high = (np.log([getattr(ranges[name], end) for name in names]) for end in ("low", "high"))
    hold = np.array([ranges[name].hold for name in names])
    weight = weights(rows, cluster)

    def named(logs: NDArray[np.float64]) -> Efficiencies:
        values: dict[str, Any] = dict(zip(names, np.exp(logs).tolist(), strict=True))
        return Efficiencies(**values)

    def residuals(logs: NDArray[np.float64]) -> Any:
        predicted = predicted_s(rows, cluster.with_efficiencies(named(logs)))
        return np.concatenate([np.log(predicted / rows.seconds) * weight, (logs - first) * hold])

    # A ratio starts low: if everything is hidden, a small change makes no difference, and the fit would stay
    # there.
    begin = np.array(
        [np.log(FIRST_RATIO) if name in OVERLAP_RANGES else np.log(ranges[name].start) for name in names]
    )
    answer = least_squares(
        residuals,
        np.clip(begin, low, high),
        bounds=(low - 1e-9, high + 1e-9),
        loss="soft_l1",
        f_scale=SCALE,
        max_nfev=60,
    )
    return named(answer.x)


def _factors(rows: Rows, cluster: Cluster) -> tuple[MeasuredShape, ...]:
    shapes, of_row = _shared_shapes(rows)
    weight = weights(rows, cluster)

    def residuals(logs: NDArray[np.float64]) -> Any:
        blocks, heads = (np.append(one, 1.0)[of_row] for one in np.exp(logs).reshape(2, -1))
        miss = np.log(predicted_s(rows, cluster, (blocks, heads)) / rows.seconds)
        return np.concatenate([miss * weight, logs * SCALE / SPREAD])

    if not len(shapes):
        return ()
    answer = least_squares(residuals, np.zeros(2 * len(shapes)), loss="soft_l1", f_scale=SCALE, max_nfev=60)
    return _measured_shapes(rows, shapes, *np.exp(answer.x).reshape(2, -1))


def _shared_shapes(rows: Rows) -> tuple[NDArray[np.float64], NDArray[np.intp]]:
    """Shapes with at least `LEAST_ROWS` rows, and for each row the index of its shape; the number of shapes if it
    has none."""
    keys = np.stack([rows[name] for name in SHAPE], axis=1)
    found, of_row, times = np.unique(keys, axis=0, return_inverse=True, return_counts=True)
    shared = times >= LEAST_ROWS
    number = np.where(shared, np.cumsum(shared) - 1, shared.sum())
    return found[shared], number[of_row.reshape(-1)]


def _measured_shapes(
    rows: Rows,
    shapes: NDArray[np.float64],
    blocks: NDArray[np.float64],
    heads: NDArray[np.float64],
) -> tuple[MeasuredShape, ...]:
    """The factors with the shapes that they belong to. A head's time does not depend on attention heads: their
    mean counts."""
    found = []
    for (hidden, attention_heads, sequence, tensor, b), factor in zip(shapes, blocks.tolist(), strict=True):
        found.append(
            MeasuredShape(
                kind=LayerKind.BLOCK.value,
                hidden=float(hidden),
                parameters=float(dense_block(hidden, attention_heads).parameters_split),
                heads=float(attention_heads),
                sequence=float(sequence),
                tensor=float(tensor),
                micro_batch=float(b),
                attention=rows.attention.value,
                sequence_parallel=rows.sequence_parallel,
                factor=factor,
            )
        )
    alike = shapes[:, [0, 2, 3, 4]]
    for key in np.unique(alike, axis=0):
        hidden, sequence, tensor, b = key.tolist()
        found.append(
            MeasuredShape(
                kind=LayerKind.HEAD.value,
                hidden=hidden,
                parameters=float(head(hidden, rows.vocabulary).parameters_split),
                heads=0.0,
                sequence=sequence,
                tensor=tensor,
                micro_batch=b,
                attention="",
                sequence_parallel=rows.sequence_parallel,
                factor=float(heads[np.all(alike == key, axis=1)].mean()),
            )
        )
    return tuple(found)


def weights(rows: Rows, cluster: Cluster) -> NDArray[np.float64]:
    """Rows on one node and rows on several have the same total weight: each kind gives evidence that the other
    cannot."""
    across = rows["gpus"] > cluster.device.devices_per_node
    weight = np.ones(len(rows))
    if across.any() and not across.all():
        rarer = across if across.sum() * 2 < len(rows) else ~across
        weight[rarer] = np.sqrt((~rarer).sum() / rarer.sum())
    return weight


def rounded(constants: Efficiencies) -> Efficiencies:
    """Rounded to four digits, as a data file holds."""
    shapes = tuple(replace(one, factor=float(f"{one.factor:.4g}")) for one in constants.shapes)
    names = (*RANGES, *OVERLAP_RANGES)
    numbers: dict[str, Any] = {name: float(f"{getattr(constants, name):.4g}") for name in names}
    return replace(constants, shapes=shapes, **numbers)


def description(constants: Efficiencies) -> dict[str, Any]:
    """Constants as `cluster.efficiencies_from` reads them."""
    shapes = [asdict(one) for one in constants.shapes]
    return {**{name: getattr(constants, name) for name in (*RANGES, *OVERLAP_RANGES)}, "shapes": shapes}
