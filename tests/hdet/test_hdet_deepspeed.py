"""DeepSpeed on the CPU, over gloo. Skipped where it is not installed, which includes everything but Linux."""

import importlib.util

import pytest
from rank_pool import RankPool

pytestmark = [
    pytest.mark.full,
    pytest.mark.skipif(importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"),
]


def test_a_data_parallel_job_fans_out_and_converges(ranks: RankPool) -> None:
    for seen in ranks.run("ranks_deepspeed:data_parallel", timeout_s=280):
        assert seen["replicas"] == 4
        assert [apart == 0 for apart in seen["apart"]] == [False, True, False, True]


def test_the_stages_of_a_pipeline_converge_with_their_copies(ranks: RankPool) -> None:
    answers = ranks.run("ranks_deepspeed:pipeline", timeout_s=280)
    assert sorted((seen["stage"], seen["replica"]) for seen in answers) == [(0, 0), (0, 1), (1, 0), (1, 1)]
    assert {seen["parameters"] for seen in answers} == {8 * 16 + 16, 16 * 2 + 2}
    for seen in answers:
        assert seen["replicas"] == 2
        assert [apart == 0 for apart in seen["apart"]] == [False, True, False, True]
        assert seen["losses"][seen["replica"]] == pytest.approx(seen["own"])
    assert len({seen["losses"] for seen in answers}) == 1
    assert len(set(answers[0]["losses"])) == 2


def test_zero_1_is_refused_with_the_reason(ranks: RankPool) -> None:
    told = ranks.run("ranks_deepspeed:sharded", timeout_s=280)
    assert len(set(told)) == 1
    assert told[0][0].startswith("DeepSpeed runs ZeRO stage 1")
    assert "shards are not replicas; set zero_optimization.stage to 0" in told[0][1]
