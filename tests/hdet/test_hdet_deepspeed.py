"""DeepSpeed on the CPU. It builds an extension on its first run, which takes a minute.

Skipped where it is not installed.
"""

import importlib.util

import pytest
from rank_pool import RankPool

pytestmark = pytest.mark.skipif(
    importlib.util.find_spec("deepspeed") is None, reason="DeepSpeed is not installed"
)


def test_a_data_parallel_job_fans_out_and_converges(ranks: RankPool) -> None:
    for seen in ranks.run("ranks_deepspeed:data_parallel", timeout_s=280):
        assert seen["replicas"] == 4
        assert [apart == 0 for apart in seen["apart"]] == [False, True, False, True]


def test_zero_1_is_refused_with_the_reason(ranks: RankPool) -> None:
    told = ranks.run("ranks_deepspeed:sharded", timeout_s=280)
    assert len(set(told)) == 1
    assert told[0][0].startswith("DeepSpeed runs ZeRO stage 1")
    assert "shards are not replicas; set zero_optimization.stage to 0" in told[0][1]
