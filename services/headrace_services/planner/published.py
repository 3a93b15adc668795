"""Published iterations that are not fitted: predicted with constants from elsewhere, and compared with what was
measured.

Each table leaves something open. If a micro-batch or a number of chunks is not given, the authors had tuned it, so
the fastest predicted one is used; every record says what was assumed.
"""

import csv
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from headrace_services.planner.cluster import Cluster
from headrace_services.planner.measured import COLUMNS, Rows, predicted_s
from headrace_services.planner.model import AttentionKernel


@dataclass(frozen=True, slots=True, kw_only=True)
class Comparison:
    """One published iteration and its prediction."""

    table: str
    case: str
    measured_s: float
    predicted_s: float
    assumed: str

    @property
    def miss(self) -> float:
        """The signed relative error of the prediction."""
        return self.predicted_s / self.measured_s - 1


def sc21(path: Path, cluster: Cluster) -> list[Comparison]:
    """Narayanan et al. SC'21, table 1: full recomputation, micro-batch and chunks not given."""
    found = []
    for line in _lines(path):
        base = _rows(line, gpus=int(line["gpus"]), sequence=2048)
        seconds, b, v = min(_tuned(base, cluster, micro_batches=(1, 2, 4, 8), chunks=(1, 2, 4)))
        found.append(
            Comparison(
                table="megatron-sc21",
                case=f"{line['params_b']}B",
                measured_s=float(line["iteration_s"]),
                predicted_s=seconds,
                assumed=f"b={b}, v={v}",
            )
        )
    return found


def korthikanti(path: Path, cluster: Cluster) -> list[Comparison]:
    """Korthikanti et al. 2022, table 5: everything recomputed, and selective with sequence parallelism."""
    found = []
    for line in _lines(path):
        base = _rows(line, gpus=int(line["gpus"]), sequence=2048)
        base = replace(_at(base, int(line["micro_batch"])), chunks=float(line["interleave"]))
        selective = replace(
            base, full_recompute=False, sequence_parallel=True, attention=AttentionKernel.SELECTIVE
        )
        for rows, column in ((base, "full_recompute_s"), (selective, "selective_sp_s")):
            found.append(
                Comparison(
                    table="korthikanti22",
                    case=f"{line['params_b']}B {column.removesuffix('_s')}",
                    measured_s=float(line[column]),
                    predicted_s=float(predicted_s(rows, cluster)[0]),
                    assumed="",
                )
            )
    return found


def h100(path: Path, cluster: Cluster) -> list[Comparison]:
    """Megatron-LM's README: S=4096, V=131072, 48 data ranks, nothing recomputed, flash attention, 32-bit gradients.

    It overlaps gradients, parameters and tensor-parallel collectives, and no row here or elsewhere shows how well.
    It is assumed that gradients and parameters hide as far as there is a pass to hide behind, and tensor
    collectives never.
    """
    ideal = replace(cluster.device.efficiencies, overlap_gradients=1.0, overlap_optimizer=1.0)
    cluster = cluster.with_efficiencies(ideal)
    found = []
    for line in _lines(path):
        gpus = 48 * int(line["tp"]) * int(line["pp"])
        rows = _rows(line, gpus=gpus, sequence=4096)
        told = {"overlap": np.ones(1), "sharded": np.ones(1), "gradient_bytes": np.full(1, 4.0)}
        base = replace(
            rows,
            columns={**rows.columns, **told},
            vocabulary=131072.0,
            full_recompute=False,
            attention=AttentionKernel.FLASH,
            sequence_parallel=True,
        )
        seconds, b, v = min(_tuned(base, cluster, micro_batches=(1, 2, 4), chunks=(1, 2, 4)))
        found.append(
            Comparison(
                table="megatron-h100",
                case=f"{line['params_b']}B",
                measured_s=float(line["iteration_s"]),
                predicted_s=seconds,
                assumed=f"b={b}, v={v}, gradients and parameters hidden, A100 shares of H100 peaks",
            )
        )
    return found


def _tuned(
    base: Rows, cluster: Cluster, *, micro_batches: tuple[int, ...], chunks: tuple[int, ...]
) -> Iterator[tuple[float, int, int]]:
    s, per_rank = int(base["pp"][0]), base["global_batch"][0] / base["dp"][0]
    for b in micro_batches:
        for v in chunks if s > 1 else (1,):
            fits = (
                per_rank % b == 0 and base["layers"][0] % (s * v) == 0 and (v == 1 or per_rank / b % s == 0)
            )
            if fits:
                rows = replace(_at(base, b), chunks=float(v))
                yield float(predicted_s(rows, cluster)[0]), b, v


def _rows(line: Mapping[str, str], *, gpus: int, sequence: int) -> Rows:
    tp, pp = int(line["tp"]), int(line["pp"])
    values = {
        "gpus": gpus,
        "global_batch": float(line["global_batch"]),
        "micro_batch": 1,
        "hidden": float(line["hidden"]),
        "heads": float(line["heads"]),
        "layers": float(line["layers"]),
        "seq": sequence,
        "tp": tp,
        "dp": gpus // tp // pp,
        "pp": pp,
        "iteration_ms": 1.0,
    }
    return Rows(columns={name: np.array([float(values[name])]) for name in COLUMNS})


def _at(rows: Rows, micro_batch: int) -> Rows:
    return replace(rows, columns={**rows.columns, "micro_batch": np.array([float(micro_batch)])})


def _lines(path: Path) -> list[dict[str, str]]:
    return list(csv.DictReader(path.read_text("utf-8").splitlines()))
