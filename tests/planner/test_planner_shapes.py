"""Measured shapes: a layer that was measured in exactly this shape has the measured time, any other the formula's."""

import json
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from refusals import refused

from headrace_services.planner import catalogue
from headrace_services.planner.blocks import dense_block, model_from_description
from headrace_services.planner.calibration import description, fit
from headrace_services.planner.cluster import (
    Cluster,
    MeasuredShape,
    device_from_description,
    efficiencies_from,
)
from headrace_services.planner.collectives import Group
from headrace_services.planner.layer_cost import Shape, formula_times, layer_times
from headrace_services.planner.measured import predicted_s, read_rows
from headrace_services.planner.model import AttentionKernel
from headrace_services.planner.validation import groups, ranking

DATA = Path(__file__).parents[2] / "benchmarks" / "planner" / "data"
BLOCK = dense_block(2048, 16)
MEASURED = MeasuredShape(
    kind="block",
    hidden=2048,
    parameters=BLOCK.parameters_split,
    heads=16,
    sequence=1024,
    tensor=2,
    micro_batch=4,
    attention="materialised",
    sequence_parallel=False,
    factor=1.25,
)


def shape(t: int = 2, b: int = 4, *, sp: bool = False, attention: str = "materialised") -> Shape:
    return Shape(
        micro_batch=b,
        sequence=1024,
        tensor=Group(per_node=t, nodes=1),
        expert=Group(per_node=1, nodes=1),
        sequence_parallel=sp,
        attention=AttentionKernel(attention),
    )


def cluster(*shapes: MeasuredShape) -> Cluster:
    plain = catalogue.cluster("a100-8")
    return plain.with_efficiencies(replace(plain.device.efficiencies, shapes=shapes))


def test_a_measured_shape_takes_as_long_as_measured() -> None:
    known = cluster(MEASURED)
    formula, times = formula_times(BLOCK, shape(), known), layer_times(BLOCK, shape(), known)
    for name, seconds in asdict(formula).items():
        assert getattr(times, name) == pytest.approx(1.25 * seconds, rel=1e-12)


@pytest.mark.parametrize(
    "other",
    [shape(t=4), shape(b=2), shape(sp=True), shape(attention="flash"), shape(attention="selective")],
)
def test_other_shapes_keep_the_formula(other: Shape) -> None:
    assert layer_times(BLOCK, other, cluster(MEASURED)) == formula_times(BLOCK, other, cluster())


def test_a_gated_block_is_another_layer() -> None:
    run = {"count": 1, "heads": 16, "gated": True}
    gated = {"vocabulary": 1000, "sequence": 1024, "hidden": 2048, "blocks": [run]}
    layer = model_from_description("gated", gated).layers[1]
    assert layer_times(layer, shape(), cluster(MEASURED)) == formula_times(layer, shape(), cluster())


def test_one_tensor_rank_has_no_sequence_parallelism() -> None:
    alone = replace(MEASURED, tensor=1)
    times = layer_times(BLOCK, shape(t=1, sp=True), cluster(alone))
    assert times.forward_s == pytest.approx(
        1.25 * formula_times(BLOCK, shape(t=1, sp=True), cluster()).forward_s, rel=1e-12
    )


def test_shapes_are_not_borrowed_by_other_devices() -> None:
    device = catalogue.device("a100")
    told: dict[str, Any] = {
        name: getattr(device, name)
        for name in ("peak_flops", "memory_bytes", "memory_bandwidth", "link_bandwidth", "network_bandwidth")
    }
    told |= {"devices_per_node": 8, "efficiencies": "fitted"}
    profiles = {"fitted": cluster(MEASURED).device.efficiencies}
    assert device_from_description("other", told, profiles).efficiencies.shapes == ()
    own = device_from_description("own", {**told, "calibrated": True}, profiles)
    assert own.efficiencies.shapes == (MEASURED,)
    assert device.efficiencies.shapes
    assert catalogue.device("h100").efficiencies.shapes == ()


def test_shapes_survive_a_file() -> None:
    constants = cluster(MEASURED).device.efficiencies
    assert efficiencies_from(json.loads(json.dumps(description(constants)))) == constants


@pytest.mark.parametrize(
    ("fault", "field"),
    [
        ({"kind": "nobody"}, "shapes[0].kind"),
        ({"factor": -1}, "shapes[0].factor"),
        ({"attention": 3}, "shapes[0].attention"),
        ({"colour": 1}, "shapes[0].colour"),
    ],
)
def test_shapes_at_fault(fault: dict[str, Any], field: str) -> None:
    constants = description(cluster().device.efficiencies)
    with refused(f"efficiencies.{field}"):
        efficiencies_from({**constants, "shapes": [{**asdict(MEASURED), **fault}]})


@pytest.mark.full
def test_a_model_that_was_left_out_is_ordered_by_the_shapes_it_shares() -> None:
    """vTrain's h=2048 L=20 was never fitted; its kernels are those of other depths."""
    rows = read_rows([DATA / "vtrain_multi_node.csv", DATA / "vtrain_single_node.csv"])
    on = catalogue.cluster("a100-80g-hdr4-512")
    own = (rows["hidden"] == 2048) & (rows["layers"] == 20)
    constants = fit(rows.where(~own), on)
    held = rows.where(own)
    predicted = predicted_s(held, on.with_efficiencies(constants))
    orders = groups(held, predicted, ("gpus", "global_batch"), least=4)
    assert max(one.regret for one in orders) <= 0.05
    assert min(one.spearman for one in orders) >= 0.8
    assert np.median(np.abs(predicted / held.seconds - 1)) <= 0.02
    plain = on.with_efficiencies(replace(constants, shapes=()))
    formula = ranking("formula", predicted_s(held, plain), held.seconds)
    assert formula.accuracy.mean > 2 * ranking("shapes", predicted, held.seconds).accuracy.mean
