"""The cost model against published numbers and against its own formulas."""

import csv
from pathlib import Path

import pytest

from headrace_services.planner import catalogue
from headrace_services.planner.blocks import dense_block, gpt
from headrace_services.planner.collectives import Group, all_reduce_s, group
from headrace_services.planner.degrees import Degrees, stages_part
from headrace_services.planner.layer_cost import Shape, layer_times
from headrace_services.planner.memory import (
    Gradients,
    ZeroStage,
    bytes_per_parameter,
    checkpoint_bytes,
    saved_bytes,
    static_bytes,
)
from headrace_services.planner.model import AttentionKernel
from headrace_services.planner.schedules import Schedule, in_flight
from headrace_services.planner.stage_cost import transfer_s

DATA = Path(__file__).parents[2] / "benchmarks" / "planner" / "data"
GIB = 2**30
ROWS = list(csv.DictReader((DATA / "korthikanti22.csv").read_text().splitlines()))


def shape(b: int, sequence: int, t: int, attention: AttentionKernel, *, sp: bool) -> Shape:
    return Shape(
        micro_batch=b,
        sequence=sequence,
        tensor=Group(per_node=t, nodes=1),
        expert=Group(per_node=1, nodes=1),
        sequence_parallel=sp,
        attention=attention,
    )


@pytest.mark.parametrize("row", ROWS, ids=lambda r: r["params_b"])
def test_activation_memory_is_korthikantis(row: dict[str, str]) -> None:
    """Table 2 and figure 7 of Korthikanti et al. 2022, within 5%."""
    layers, s, v = int(row["layers"]), int(row["pp"]), int(row["interleave"])
    block = dense_block(int(row["hidden"]), int(row["heads"]))
    b, t = int(row["micro_batch"]), int(row["tp"])
    micro_batches = int(row["global_batch"]) // b
    schedule = Schedule.INTERLEAVED if v > 1 else Schedule.ONE_F_ONE_B
    alive = in_flight(schedule, s, micro_batches, v)[0] / v * layers / s
    none = saved_bytes(block, shape(b, 2048, t, AttentionKernel.MATERIALISED, sp=False)) * alive / GIB
    selective = saved_bytes(block, shape(b, 2048, t, AttentionKernel.SELECTIVE, sp=True)) * alive / GIB
    assert none == pytest.approx(float(row["act_none_gib"]), rel=0.05)
    assert selective == pytest.approx(float(row["act_sel_sp_gib"]), rel=0.05)


def test_a_recomputed_layer_keeps_its_input() -> None:
    block = dense_block(1024, 16)
    assert checkpoint_bytes(block, shape(2, 512, 4, AttentionKernel.FLASH, sp=True)) == 2 * 2 * 512 * 1024


@pytest.mark.parametrize(
    ("zero", "shards", "gradients", "wanted"),
    [
        (ZeroStage.OPTIMIZER, 1, Gradients.BF16, 16.0),
        (ZeroStage.OPTIMIZER, 4, Gradients.BF16, 7.0),
        (ZeroStage.GRADIENTS, 7, Gradients.BF16, 4.0),
        (ZeroStage.PARAMETERS, 16, Gradients.BF16, 1.0),
        (ZeroStage.OPTIMIZER, 1, Gradients.FP32, 18.0),
        (ZeroStage.OPTIMIZER, 4, Gradients.FP32, 9.0),
        (ZeroStage.GRADIENTS, 8, Gradients.FP32, 4.0),
        (ZeroStage.PARAMETERS, 18, Gradients.FP32, 1.0),
    ],
)
def test_zero_bytes(zero: ZeroStage, shards: int, gradients: Gradients, wanted: float) -> None:
    """The guide to Megatron-LM's distributed optimizer: 18 bytes, or 6 + 12/d, with 32-bit gradients."""
    assert bytes_per_parameter(zero, shards, gradients) == wanted


def test_experts_are_sharded_over_their_replicas_only() -> None:
    layer = catalogue.model("mixtral-8x7b").layers[1]
    all_ = Degrees(d=8, m=1, o=8, s=1, mu=1, e=8)
    one = static_bytes(layer, all_, ZeroStage.OPTIMIZER, Gradients.FP32)
    dense = (layer.parameters_split + layer.parameters_replicated) * (6 + 12 / 8)
    assert one == pytest.approx(dense + layer.parameters_expert / 8 * 18)


@pytest.mark.parametrize(
    ("name", "billions"),
    [
        ("gpt3-175b", 175.0),
        ("llama3-8b", 8.03),
        ("llama3-70b", 70.6),
        ("llama3-405b", 405.9),
        ("deepseek-v2", 235.7),
        ("deepseek-v3", 671.0),
        ("deepseek-141b", 141.7),
        ("mixtral-8x7b", 46.7),
        ("mixtral-8x22b", 140.6),
    ],
)
def test_presets_have_their_published_size(name: str, billions: float) -> None:
    assert catalogue.model(name).parameters / 1e9 == pytest.approx(billions, rel=0.004)


def test_model_flops_are_the_published_formula() -> None:
    """72·B·S·L·h²(1 + S/6h + V/12Lh), Narayanan et al. SC'21."""
    h, layers, sequence, words, batch = 2048, 24, 2048, 51200, 16
    model = gpt("gpt", hidden=h, layers=layers, heads=16, sequence=sequence)
    formula = 72 * batch * sequence * layers * h**2 * (1 + sequence / (6 * h) + words / (12 * layers * h))
    assert model.model_flops(batch) == pytest.approx(formula, rel=1e-12)


def test_all_reduce_is_the_ring_formula() -> None:
    flat = all_reduce_s(
        8e9, Group(per_node=8, nodes=1), link=1e9, network=1.0, latency_s=1e-3, node_latency_s=0
    )
    assert flat == pytest.approx(14e-3 + 2 * 7 / 8 * 8)
    tiers = all_reduce_s(
        8e9, Group(per_node=4, nodes=2), link=1e9, network=1e8, latency_s=0, node_latency_s=0
    )
    assert tiers == pytest.approx(2 * 3 / 4 * 8 + 2 * 1 / 2 * 2e9 / 1e8)


def test_groups_follow_megatrons_order() -> None:
    assert group(16, 4, 8) == Group(per_node=2, nodes=8)
    assert group(4, 8, 8) == Group(per_node=1, nodes=4)
    assert group(3, 2, 8) == Group(per_node=3, nodes=1)


def test_small_stages_share_a_node() -> None:
    cluster = catalogue.cluster("a100-16")
    assert stages_part(Degrees(d=1, m=4, o=1, s=4, mu=4), cluster) == (False, True, False)
    assert stages_part(Degrees(d=2, m=4, o=1, s=2, mu=4), cluster) == (True,)
    assert stages_part(Degrees(d=3, m=1, o=1, s=5, mu=4), cluster) == (False, True, True, False)
    inside = stages_part(Degrees(d=1, m=2, o=1, s=4, mu=4), catalogue.cluster("a100-8"))
    assert inside == (False, False, False)


@pytest.mark.parametrize("sp", [True, False])
def test_a_sequence_that_stays_split_is_not_gathered_between_stages(sp: bool) -> None:
    """Only shards cross between stages; without sequence parallelism their receivers gather them."""
    cluster = catalogue.cluster("a100-16")
    device, constants = cluster.device, cluster.device.efficiencies
    volume = 2 * 4 * 2048 * 8192
    received = transfer_s(8192, shape(4, 2048, 4, AttentionKernel.FLASH, sp=sp), 0.0, cluster)
    link = device.link_bandwidth * constants.link
    moved = volume / 4 if sp else volume
    assert received == pytest.approx(constants.transfer_s + moved / link, rel=1e-9)


def test_more_tensor_ranks_compute_less_and_talk_more() -> None:
    model, cluster = catalogue.model("gpt3-13b"), catalogue.cluster("a100-8")
    one, eight = (
        layer_times(model.layers[1], shape(4, 2048, t, AttentionKernel.FLASH, sp=True), cluster)
        for t in (1, 8)
    )
    assert eight.forward_s < one.forward_s
    assert eight.communication_s > one.communication_s == 0
    assert one.recompute_s == one.forward_s
    assert one.backward_s == pytest.approx(2 * one.forward_s, rel=0.05)
