"""Bounds of questions to the planner (planner.proto)."""

from typing import Final

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Bound, Json, Real, Whole
from headrace.bounds.specs import NAME

_WORD: Final = NAME
_DEGREE: Final = Whole(0, n.DEGREE)
_DESCRIPTION: Final = Json(65_536, 16)

PLANNING: Final[dict[str, dict[str, Bound]]] = {
    "PlanQuestion": {
        "model_name": _WORD,
        "model_json": _DESCRIPTION,
        "cluster_name": _WORD,
        "cluster_json": _DESCRIPTION,
        "batch": Whole(0, n.SEQUENCES),
        "sequence": Whole(0, n.TOKENS),
        "schedule": _WORD,
        "chunks": Whole(0, 64),
        "zero": Whole(0, 3),
        "attention": _WORD,
        "mode": _WORD,
        "method": _WORD,
        "gradients": _WORD,
        "overlap": _WORD,
        "usable_memory": Real(0.0, 1.0),
        "target": _WORD,
    },
    "PlanDegrees": {
        "data": _DEGREE,
        "tensor": _DEGREE,
        "optimizer": _DEGREE,
        "pipeline": _DEGREE,
        "micro_batches": Whole(0, n.SEQUENCES),
        "expert": _DEGREE,
    },
    "PlanRequest": {"seconds": Real(0.0, 1e6), "budget": Whole(0, 10**9)},
    "SimulateRequest": {},
    "ExplainRequest": {"count": Whole(0, 50)},
}
