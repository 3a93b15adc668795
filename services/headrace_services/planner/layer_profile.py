"""Layers as a user measured them: seconds and bytes by micro-batch, instead of a Transformer's description.

A file has `micro_batches`, the measured sizes, and `layers`, each with one number per size. Between two sizes a
plan interpolates linearly. Beyond the largest, seconds and bytes grow in proportion. Below the smallest, bytes
shrink in proportion but seconds do not: kernels are launched anyway.

Nothing is known about tensor ranks, so plans have none. Sequences are samples here: they have no length of their
own.
"""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Final

from headrace_services.planner.blocks import MOST_BLOCKS, MOST_KINDS
from headrace_services.planner.checking import Checker
from headrace_services.planner.model import Layer, LayerKind, LayerProfile, Model

SECONDS: Final = ("forward_s", "backward_s", "weight_s")
BYTES: Final = ("activation_bytes", "input_bytes")
OPTIONAL: Final = ("weight_s",)
FIELDS: Final = frozenset(
    [*SECONDS, *BYTES, "name", "count", "parameter_bytes", "forward_flops", "recomputable"]
)
TOP_FIELDS: Final = frozenset(["source", "name", "micro_batches", "number_bytes", "layers"])
MOST_SIZES: Final = 64
SHORTEST_S: Final = 1e-9
"""The minimum of a forward pass: time passes even if nothing is computed."""


def is_profile(description: Mapping[str, Any]) -> bool:
    """Whether a JSON object is a profile rather than a description or a configuration."""
    return "layers" in description and "blocks" not in description and "model_type" not in description


def model_from_profile(name: str, description: Mapping[str, Any]) -> Model:
    """The model of a profile. Raises InvalidFieldError with every field at fault."""
    check = Checker("model")
    check.known(description, TOP_FIELDS)
    sizes = _sizes(check, description.get("micro_batches"))
    number_bytes = check.integer(description, "number_bytes", low=1, high=8, default=2)
    told = description["layers"]
    if not isinstance(told, list) or not told:
        remedy = "Write layers: [{forward_s, backward_s, parameter_bytes, activation_bytes, input_bytes}]."
        check.fail("layers", None, "must be a list of at least one layer", remedy)
        told = []
    layers: list[Layer] = []
    for number, one in enumerate(told):
        inner = check.below(f"layers[{number}]")
        if not isinstance(one, Mapping):
            inner.fail("", one, "must be a mapping", "Write {forward_s: [...], backward_s: [...], ...}.")
            continue
        count = inner.integer(one, "count", low=1, high=MOST_BLOCKS, default=1)
        layer = _layer(inner, one, sizes, number_bytes)
        layers += [layer] * count if inner.clean else []
    if len(set(layers)) > MOST_KINDS:
        message = f"have {len(set(layers))} kinds; at most {MOST_KINDS} are supported"
        check.fail(
            "layers", None, message, "Give layers that are nearly alike the same numbers, or join some."
        )
    if len(layers) > MOST_BLOCKS:
        check.fail("layers", len(layers), f"are more than {MOST_BLOCKS}", "Join some of them.")
    check.done()
    # A stage's receives do not depend on where it starts, so all are priced like the largest.
    widest = max(
        (layer.profile.bytes(layer.profile.input_bytes, 1) for layer in layers[1:] if layer.profile),
        default=0.0,
    )
    return Model(
        name=str(description.get("name", name)),
        layers=tuple(replace(layer, hidden=widest / 2) for layer in layers),
        sequence=1,
        source=str(description.get("source", "")),
        description=description,
        notes=(
            "layers are measured: no tensor ranks; every transfer between stages is as large as the largest input",
            "a parameter's memory is counted as in mixed precision with Adam",
        ),
    )


def _sizes(check: Checker, told: Any) -> tuple[int, ...]:
    good = isinstance(told, list) and 0 < len(told) <= MOST_SIZES
    if not good or not all(isinstance(one, int) and not isinstance(one, bool) and one > 0 for one in told):
        check.fail("micro_batches", told, "must be a list of whole numbers", "Write the sizes: [1, 2, 4].")
        return ()
    if sorted(set(told)) != told:
        check.fail(
            "micro_batches",
            told,
            "must be in increasing order",
            "Sort the sizes, and each layer's numbers with them.",
        )
    return tuple(told)


def _layer(check: Checker, told: Mapping[str, Any], sizes: tuple[int, ...], number_bytes: int) -> Layer:
    check.known(told, FIELDS)
    numbers = {
        field: _numbers(check, told, field, len(sizes), unit)
        for fields, unit in ((SECONDS, "seconds"), (BYTES, "bytes"))
        for field in fields
    }
    for whole, part in zip(numbers["backward_s"], numbers["weight_s"], strict=False):
        if part > whole:
            check.fail("weight_s", part, f"is more than backward_s {whole:g}", "It is a part of backward_s.")
            break
    stored = check.number(told, "parameter_bytes", low=0, high=1e15, unit="bytes")
    flops = check.number(told, "forward_flops", low=0, high=1e20, unit="FLOPs of one sample", default=0)
    return Layer(
        name="measured",
        kind=LayerKind.BLOCK,
        hidden=0,
        parameters_replicated=stored / number_bytes,
        profile=LayerProfile(
            micro_batches=sizes,
            forward_flops=flops,
            recomputable=check.flag(told, "recomputable", default=True),
            **numbers,
        ),
    )


def _numbers(check: Checker, told: Mapping[str, Any], field: str, count: int, unit: str) -> tuple[float, ...]:
    listed = told.get(field, [0] * count if field in OPTIONAL else None)
    if listed is None:
        check.fail(field, None, "is missing", f"Give a list of {unit}, one number per micro-batch size.")
        return ()
    if not isinstance(listed, list) or (count and len(listed) != count):
        found = f"has {len(listed)} numbers" if isinstance(listed, list) else "is no list"
        message = f"{found}, and micro_batches has {count}"
        check.fail(field, listed, message, f"Give a list of {unit}, one number per micro-batch size.")
        return ()
    high = 1e6 if unit == "seconds" else 1e15
    low = SHORTEST_S if field == "forward_s" else 0.0
    numbers = {f"{field}[{place}]": one for place, one in enumerate(listed)}
    return tuple(check.number(numbers, place, low=low, high=high, unit=unit) for place in numbers)
