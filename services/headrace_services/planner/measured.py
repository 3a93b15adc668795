"""Measured iterations: rows of a CSV file, and the times that the cost model predicts for them.

It is the same model that plans (`layer_cost`, `stage_cost`, `simulator.closed_form_s`), fed with columns of all
rows at once instead of one tuple's numbers. Rows are Megatron-style GPT runs with equal stages and 1F1B; a first
stage also holds the embedding and a last one the head.
"""

import csv
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from headrace.errors import InvalidFieldError, Violation
from headrace.userfile import MIB, UserFile
from headrace_services.planner.blocks import dense_block, head
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.collectives import Group, hidden_s
from headrace_services.planner.layer_cost import Shape, formula_times, measured_factor
from headrace_services.planner.model import AttentionKernel, Layer
from headrace_services.planner.stage_cost import gradient_s, optimizer_s, transfer_s

COLUMNS: Final = (
    "gpus",
    "global_batch",
    "micro_batch",
    "hidden",
    "heads",
    "layers",
    "seq",
    "tp",
    "dp",
    "pp",
    "iteration_ms",
)
ROWS: Final = UserFile(largest_bytes=16 * MIB, remedy="Name a CSV file of measured iterations.")
OPTIONAL: Final[Mapping[str, tuple[float, ...]]] = MappingProxyType(
    {"overlap": (0.0, 1.0), "sharded": (0.0, 1.0), "gradient_bytes": (2.0, 4.0)}
)
"""Columns that may be missing, with their possible values; the first value is the default.

`overlap`: the job hides communication behind computation. `sharded`: data ranks share the optimizer, so gradients
are scattered and parameters (2 bytes) are gathered.
"""
Column = NDArray[np.float64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Rows:
    """Columns of measured rows, all of the same length."""

    columns: dict[str, Column]
    vocabulary: float = 51200.0
    full_recompute: bool = True
    attention: AttentionKernel = AttentionKernel.MATERIALISED
    sequence_parallel: bool = False
    chunks: float = 1.0

    def __len__(self) -> int:
        return len(self.columns["gpus"])

    def __getitem__(self, name: str) -> Column:
        return self.columns[name]

    def where(self, mask: NDArray[Any]) -> "Rows":
        """Some of the rows."""
        return replace(self, columns={name: column[mask] for name, column in self.columns.items()})

    def told(self, name: str) -> Column:
        """A column of `OPTIONAL`, or its default."""
        return self.columns.get(name, np.full(len(self), OPTIONAL[name][0]))

    @property
    def seconds(self) -> Column:
        """The measured seconds."""
        return self["iteration_ms"] / 1e3


def read_rows(paths: Sequence[Path]) -> Rows:
    """The rows of CSV files with the columns `COLUMNS`, in order. Raises InvalidFieldError."""
    found: list[list[float]] = []
    for path in paths:
        try:
            lines = list(csv.DictReader(ROWS.text(path).splitlines()))
        except csv.Error as error:
            raise _fault(str(path), f"is not CSV: {error}", "Correct the file.") from None
        for number, line in enumerate(lines, start=2):
            try:
                row = [float(line[name]) for name in COLUMNS]
                further = {name: float(line.get(name) or known[0]) for name, known in OPTIONAL.items()}
            except (KeyError, TypeError, ValueError):
                columns = ", ".join(COLUMNS)
                raise _fault(f"{path}:{number}", "lacks a number", f"Every row has {columns}.") from None
            if not all(0 < value < math.inf for value in row):
                raise _fault(f"{path}:{number}", "has a number that is not positive", "Correct the row.")
            for name, value in further.items():
                if value not in OPTIONAL[name]:
                    known = " or ".join(f"{one:g}" for one in OPTIONAL[name])
                    raise _fault(f"{path}:{number}", f"says {name} {value:g}", f"Write {known}.")
            found.append([*row, *further.values()])
    if not found:
        raise _fault("", "holds no rows", f"Write a header and rows of {', '.join(COLUMNS)}.")
    table = np.array(found)
    return Rows(columns={name: table[:, i] for i, name in enumerate((*COLUMNS, *OPTIONAL))})


def row_shapes(rows: Rows, cluster: Cluster) -> tuple[Shape, Layer, Layer]:
    """The shapes in which the blocks and heads of all rows process their micro-batches."""
    t, node = rows["tp"], float(cluster.device.devices_per_node)
    one: Any = np.ones_like(t)
    shape = Shape(
        micro_batch=_any(rows["micro_batch"]),
        sequence=_any(rows["seq"]),
        tensor=Group(per_node=_any(np.minimum(t, node)), nodes=_any(np.maximum(t / node, 1.0))),
        expert=Group(per_node=one, nodes=one),
        sequence_parallel=rows.sequence_parallel,
        attention=rows.attention,
    )
    block = dense_block(_any(rows["hidden"]), _any(rows["heads"]))
    return shape, block, head(_any(rows["hidden"]), rows.vocabulary)


def predicted_s(rows: Rows, cluster: Cluster, factors: tuple[Any, Any] | None = None) -> Column:
    """Seconds per iteration, row by row.

    `factors` multiply the formulas of blocks and heads while a fit searches for them; else those of the cluster
    apply.
    """
    b, t, d, s = (rows[name] for name in ("micro_batch", "tp", "dp", "pp"))
    hidden, node = rows["hidden"], float(cluster.device.devices_per_node)
    micro_batches = rows["global_batch"] / d / b
    shape, block, last = row_shapes(rows, cluster)
    if factors is None:
        factors = measured_factor(block, shape, cluster), measured_factor(last, shape, cluster)
    tensor = cluster.device.efficiencies.overlap_tensor * rows.told("overlap")
    overlapping = cluster.with_efficiencies(replace(cluster.device.efficiencies, overlap_tensor=_any(tensor)))
    per_block, per_head = (
        formula_times(layer, shape, overlapping).scaled(factor)
        for layer, factor in zip((block, last), factors, strict=True)
    )
    again = per_block.recompute_s if rows.full_recompute else 0.0
    middle = rows["layers"] / s * (per_block.forward_s + per_block.backward_s + again)
    ends = per_head.forward_s + per_head.backward_s
    # Stages smaller than a node share one, so only some of the transfers between them cross nodes.
    several, apart = rows["gpus"] > node, d * t >= node
    parted = np.where(apart, s - 1, np.maximum(d * t * s / node, 1.0) - 1.0) * several
    within, between = (
        transfer_s(_any(hidden), shape, crosses, cluster) * _any(s > 1) * rows.chunks
        for crosses in (0.0, 1.0)
    )
    received = (s - 1 - parted) * within + parted * between
    # As in `simulator.closed_form_s`: the first stage receives gradients, the last inputs, the others both.
    far, near = np.where(several, between, within), np.where(apart & several, between, within)
    first, final = middle + near, middle + ends + near
    inner = middle + near + far
    filling = middle * s + ends + 2 * received
    slowest = np.maximum(np.maximum(first, final), np.where(s > 2, inner, 0.0))
    alpha = np.where(s > 1, 1.0 / rows.chunks, 1.0)
    pipeline = alpha * filling + (micro_batches - alpha) * slowest
    blocks = rows["layers"] / s
    tail = _tail_s(rows, cluster, blocks * per_block.forward_s, blocks * per_block.backward_s)
    return np.asarray(pipeline + tail + cluster.device.efficiencies.iteration_s)


def _tail_s(rows: Rows, cluster: Cluster, forward_s: Any, backward_s: Any) -> Any:
    """For the stage with the embedding: the optimizer's step, and the gradient and parameter collectives that no
    pass hides."""
    constants = cluster.device.efficiencies
    t, d, s, node = rows["tp"], rows["dp"], rows["pp"], float(cluster.device.devices_per_node)
    block = dense_block(_any(rows["hidden"]), _any(rows["heads"]))
    blocks: Any = (block.parameters_split / t + block.parameters_replicated) * rows["layers"] / s
    parameters: Any = blocks + rows.vocabulary * rows["hidden"] / t
    per_node = np.clip(node / t, 1.0, d)
    ranks = Group(per_node=_any(per_node), nodes=_any(d / per_node))
    reduce = gradient_s(parameters, ranks, cluster, bytes_each=_any(rows.told("gradient_bytes")))
    sharded: Any = rows.told("sharded")
    reduce = reduce * (1 - sharded / 2)
    gather = gradient_s(parameters, ranks, cluster) / 2 * sharded
    step = optimizer_s(parameters, cluster) / np.where(sharded, d, 1.0)
    overlap = rows.told("overlap")
    behind_backward = hidden_s(backward_s, constants.overlap_gradients, cluster) * overlap
    behind_forward = hidden_s(forward_s, constants.overlap_optimizer, cluster) * overlap
    return step + np.maximum(reduce - behind_backward, 0.0) + np.maximum(gather - behind_forward, 0.0)


def _any(column: Any) -> Any:
    """The cost model's formulas are typed for floats and work on arrays element by element."""
    return column


def _fault(where: str, message: str, remedy: str) -> InvalidFieldError:
    return InvalidFieldError([Violation(field="rows", value=where, message=message, remedy=remedy)])
