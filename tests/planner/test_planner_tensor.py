"""Tensor degrees: only those that a model's heads and widths, its sequence and a node allow."""

import pytest
from refusals import refused

from headrace.v1 import planner_pb2 as pb
from headrace_services.planner import catalogue
from headrace_services.planner.blocks import model_from_description
from headrace_services.planner.cluster import Cluster, checked_cluster
from headrace_services.planner.costing import Request
from headrace_services.planner.degrees import Degrees, tensor_fault, tuples
from headrace_services.planner.layer_cost import Shape, layer_times
from headrace_services.planner.memory import Gradients, ZeroStage, saved_bytes, static_bytes
from headrace_services.planner.model import Model
from headrace_services.planner.modes import FULL
from headrace_services.planner.search import Search
from headrace_services.planner.service import convert


def model(
    heads: int = 128, kv_heads: int | None = None, vocabulary: int = 51200, sequence: int = 2048
) -> Model:
    run = {"count": 4, "heads": heads, "head_width": 128, "kv_heads": kv_heads or heads}
    description = {"vocabulary": vocabulary, "sequence": sequence, "hidden": 8192, "blocks": [run]}
    return model_from_description("mine", description)


def degrees_of(model: Model, cluster: Cluster) -> set[int]:
    return {degrees.m for degrees in tuples(model, cluster, 840)}


def test_a_tensor_degree_divides_heads() -> None:
    seven = Cluster(device=catalogue.device("a100"), devices=7)
    assert degrees_of(model(heads=128), seven) == {1}
    assert degrees_of(model(heads=126, sequence=7 * 256), seven) == {1}  # 4·8192 is no multiple of 7
    assert degrees_of(model(heads=12), checked_cluster(catalogue.device("a100"), 8)) == {1, 2, 4}


def test_a_tensor_degree_divides_a_node() -> None:
    """With three ranks in nodes of eight, one group would span two of them."""
    three = model(heads=12, sequence=2048 * 3)
    assert 3 not in degrees_of(three, checked_cluster(catalogue.device("a100"), 24))
    assert tensor_fault(three, checked_cluster(catalogue.device("a100"), 24), 3)
    assert tensor_fault(three, checked_cluster(catalogue.device("a100"), 24), 16)


def test_keys_and_values_are_divided_or_copied() -> None:
    eight = checked_cluster(catalogue.device("a100"), 8)
    assert degrees_of(model(kv_heads=4), eight) == {1, 2, 4, 8}
    assert degrees_of(model(heads=126, kv_heads=6, sequence=2048), eight) == {1, 2}
    block = model(kv_heads=4).layers[1]

    def held(m: int) -> float:
        return static_bytes(block, Degrees(d=1, m=m, o=1, s=1, mu=1), ZeroStage.OPTIMIZER, Gradients.FP32)

    keys = 2 * 8192 * 4 * 128
    shared = 18 * 4 * 8192
    assert held(4) == pytest.approx(18 * block.parameters_split / 4 + shared)
    assert held(8) == pytest.approx(18 * ((block.parameters_split - keys) / 8 + keys / 4) + shared)


def test_copied_heads_cost_time_and_activations() -> None:
    cluster = catalogue.cluster("a100-8")
    one, four = model(kv_heads=1).layers[1], model(kv_heads=8).layers[1]

    def shape(m: int) -> Shape:
        return Search(Request(model=model(), cluster=cluster, batch=8)).costing.shape(
            Degrees(d=8 // m, m=m, o=1, s=1, mu=1)
        )

    divided = four.saved_split / 8 - one.saved_split / 8
    saved = saved_bytes(four, shape(8)) - saved_bytes(one, shape(8))
    assert saved < shape(8).tokens * divided, "one head is copied by eight ranks"
    times = [layer_times(layer, shape(8), cluster).forward_s for layer in (one, four)]
    assert times[0] == pytest.approx(times[1], rel=1e-3), "each rank computes one head of keys either way"


def test_a_padded_vocabulary_is_priced_and_said() -> None:
    """Each rank holds a multiple of 128 words: 50257 become 51200 over eight ranks."""
    request = Request(model=model(vocabulary=50257), cluster=catalogue.cluster("a100-8"), batch=8)
    search = Search(request)
    candidate = search.candidate(FULL, Degrees(d=1, m=8, o=1, s=1, mu=8))
    assert candidate is not None
    plan = search.assembled(candidate)
    assert any("50257" in note and "51200" in note for note in plan.notes)
    even = Search(Request(model=model(vocabulary=51200), cluster=request.cluster, batch=8))
    other = even.candidate(FULL, Degrees(d=1, m=8, o=1, s=1, mu=8))
    assert other is not None
    wide = even.assembled(other)
    assert wide.stages[0].memory.static_bytes == plan.stages[0].memory.static_bytes
    assert not any("51200" in note for note in wide.notes)


@pytest.mark.parametrize(
    ("cluster", "degrees", "words"),
    [
        (
            '{"devices": 7, "devices_per_node": 7, %s}',
            pb.PlanDegrees(data=1, tensor=7),
            "attention heads 128",
        ),
        (
            '{"devices": 24, "devices_per_node": 8, %s}',
            pb.PlanDegrees(data=8, tensor=3),
            "8 devices of a node",
        ),
    ],
)
def test_simulate_refuses_what_the_search_does_not_try(
    cluster: str, degrees: pb.PlanDegrees, words: str
) -> None:
    numbers = '"peak_flops": 3e14, "memory_bytes": 8e10, "memory_bandwidth": 2e12, "link_bandwidth": 3e11'
    text = cluster % (numbers + ', "network_bandwidth": 25e9')
    question = pb.PlanQuestion(
        model_name="megatron-530b", cluster_json=text, batch=840, sequence=7 * 2048 * 3
    )
    degrees.pipeline = degrees.micro_batches = 1
    with refused("degrees.tensor", words):
        convert.degrees_from(degrees, convert.request_from(question))
