"""Curves as bytes for the pages' scripts: a header in JSON, then the columns as little-endian arrays.

    4 bytes   the length of the header, little-endian
    header    {"trials": n, "points": m, "params": [...], "metrics": [...], "columns": [[name, type, length], ...]}
    columns   in that order, each padded to a multiple of 8 bytes

Values are 32-bit floats: a picture needs no more. Parameters are numbers, or places in the list of their choices.
"""

import json
import struct
import sys
from array import array
from collections.abc import Sequence
from typing import Any, Final

from headrace.client.curves import Curves
from headrace.client.model import TrialState, Value
from headrace.spec import CategoricalDomain, IntDomain

_KINDS: Final = {"f": "f32", "i": "i32"}


def packed(curves: Curves) -> bytes:
    """The columns of a study's curves."""
    columns: list[tuple[str, array[Any]]] = [
        ("numbers", array("i", curves.numbers)),
        ("starts", array("i", curves.starts)),
        ("scores", _floats(curves.scores)),
        ("steps", array("i", [min(step, 2**31 - 1) for step in curves.steps])),
        ("times", _floats(curves.times_s)),
        *((f"metric:{name}", _floats(values)) for name, values in curves.metrics.items()),
    ]
    params: list[dict[str, Any]] = []
    for name, domain in curves.space.items():
        values = curves.params.get(name) or [None] * len(curves)
        if isinstance(domain, CategoricalDomain):
            choices: list[Value] = list(domain.values)
            columns.append((f"param:{name}", array("f", _places(values, choices))))
            params.append({"name": name, "choices": [str(choice) for choice in choices]})
        else:
            columns.append(
                (f"param:{name}", _floats([float("nan") if v is None else float(v) for v in values]))
            )
            whole = isinstance(domain, IntDomain)
            params.append({"name": name, "log": bool(getattr(domain, "log", False)), "whole": whole})
    header = {
        "trials": len(curves),
        "points": len(curves.steps),
        "outcomes": [_outcome(curves, place) for place in range(len(curves))],
        "params": params,
        "metrics": list(curves.metrics),
        "columns": [[name, _KINDS[values.typecode], len(values)] for name, values in columns],
    }
    head = json.dumps(header, separators=(",", ":")).encode()
    head += b" " * (-(len(head) + 4) % 8)
    return b"".join([struct.pack("<I", len(head)), head, *(_bytes(values) for _, values in columns)])


def _outcome(curves: Curves, place: int) -> str:
    reason, state = curves.reasons[place], curves.states[place]
    return reason.value if state is TrialState.TERMINATED and reason else state.value


def _floats(values: Sequence[float]) -> "array[float]":
    """As 32-bit floats; what they cannot hold becomes infinite."""
    return array(
        "f", [value if abs(value) < 3e38 or value != value else value * float("inf") for value in values]
    )


def _places(values: Sequence[Value | None], choices: list[Value]) -> list[float]:
    places: dict[tuple[type, Value | None], float] = {
        (type(choice), choice): float(place) for place, choice in enumerate(choices)
    }
    return [places.get((type(value), value), float("nan")) for value in values]


def _bytes(values: "array[Any]") -> bytes:
    if sys.byteorder == "big":
        values = array(values.typecode, values)
        values.byteswap()
    data = values.tobytes()
    return data + b"\0" * (-len(data) % 8)
