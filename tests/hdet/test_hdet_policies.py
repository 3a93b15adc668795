"""Policies, wrappers and sharding over four real processes."""

import math

import pytest
from rank_pool import RankPool

from headrace_torch.hdet import SyncReport
from headrace_torch.hdet.rules import multipliers


@pytest.mark.cases(2)
@pytest.mark.parametrize(
    ("policy", "mean", "count"),
    [
        ("average", [1.5] * 4, [10.0] * 4),
        ("broadcast", [0.0] * 4, [10.0] * 4),
        ("keep", [0.0, 1.0, 2.0, 3.0], [10.0, 11.0, 12.0, 13.0]),
    ],
)
def test_buffers_by_policy(ranks: RankPool, policy: str, mean: list[float], count: list[float]) -> None:
    assert ranks.run("ranks_policies:buffers", policy=policy)[0] == {"mean": mean, "count": count}


@pytest.mark.parametrize(
    ("policy", "moments"), [("keep", [1.0, 2.0, 3.0, 4.0]), ("average", [2.5] * 4), ("reset", [-1.0] * 4)]
)
def test_optimizer_state_by_policy(ranks: RankPool, policy: str, moments: list[float]) -> None:
    assert ranks.run("ranks_policies:optimizer_state", policy=policy)[0] == moments


def test_every_micro_batch_counts_by_its_weight(ranks: RankPool) -> None:
    expected = [(10 + r + 3 * (20 + r) + 11 + r + 3 * (21 + r)) / 8 for r in range(4)]
    assert ranks.run("ranks_policies:accumulated")[0] == pytest.approx(expected)
    assert ranks.run("ranks_policies:accumulated_drop_in")[0] == pytest.approx([15.5 + r for r in range(4)])


@pytest.mark.parametrize("api", ["controller", "one_cycle"])
def test_a_nan_or_a_missing_loss_has_weight_zero_on_every_rank(ranks: RankPool, api: str) -> None:
    for bad in (math.nan, math.inf, None):
        answers = ranks.run("ranks_policies:with_losses", losses=[1.0, bad, 1.0, 1.0], api=api)
        reports = [SyncReport.from_json(line) for line, _ in answers]
        assert [report.weights[1] for report in reports] == [0.0] * 4
        assert [report.weights for report in reports] == [pytest.approx((1 / 3, 0, 1 / 3, 1 / 3))] * 4
        assert [apart for _, apart in answers] == [0.0] * 4
    for losses in ([math.nan] * 4, [None] * 4):
        report = SyncReport.from_json(ranks.run("ranks_policies:with_losses", losses=losses, api=api)[0][0])
        assert report.weights == (0.0,) * 4
        assert report.hyperparameters[0].signal == 0


def test_a_replica_whose_parameters_diverged_gets_the_mean_of_the_others(ranks: RankPool) -> None:
    left_out, values = ranks.run("ranks_policies:diverged_parameters")[0]
    assert left_out == [2]
    assert values == pytest.approx([4 / 3] * 4)


def test_masters_are_averaged_and_rounded_into_their_copies(ranks: RankPool) -> None:
    seen = ranks.run("ranks_policies:masters")[0]
    assert seen["master"] == pytest.approx(1 + 1.5e-4, abs=1e-7)
    assert (seen["low"], seen["apart"]) == (1.0, 0.0)


@pytest.mark.parametrize("bucket_bytes", [1, 400, 1 << 20])
def test_buckets_of_any_size_give_the_mean(ranks: RankPool, bucket_bytes: int) -> None:
    sent = (3 + 200 + 1 + 49 + 1000) * 8 + (24 + 9) * 4
    assert (
        ranks.run("ranks_buckets:buckets_against_the_plain_mean", bucket_bytes=bucket_bytes)
        == [(True, sent)] * 4
    )


def test_float16_parameters_are_added_up_in_float32(ranks: RankPool) -> None:
    assert ranks.run("ranks_policies:half_precision") == [40096.0] * 4


@pytest.mark.parametrize(("no_sync", "autocast"), [(False, False), (True, False), (False, True)])
def test_works_under_ddp(ranks: RankPool, no_sync: bool, autocast: bool) -> None:
    for difference, reports, apart in ranks.run(
        "ranks_wrappers:under_ddp", no_sync=no_sync, autocast=autocast
    ):
        assert (difference, reports) == (0.0, 2)
        assert apart > 0


@pytest.mark.full
def test_hybrid_sharding_averages_over_the_replicate_dimension_only(ranks: RankPool) -> None:
    answers = ranks.run("ranks_wrappers:hybrid_sharding")
    assert [answer["replica"] for answer in answers] == [0, 0, 1, 1]
    assert {answer["size"] for answer in answers} == {2}
    assert all(answer["apart"] > 1e-4 for answer in answers)
    assert all(answer["shards"] == [pytest.approx(0, abs=1e-7), 0.0] for answer in answers)
    assert len({answer["losses"] for answer in answers}) == 1


@pytest.mark.cases(1)
@pytest.mark.parametrize(
    ("kind", "reason"),
    [
        ("fsdp2", "sharded over ranks [0, 1, 2, 3]"),
        ("hybrid over all ranks", "shards are not replicas"),
        ("fsdp1", "FullyShardedDataParallel (FSDP1)"),
        ("zero", "ZeroRedundancyOptimizer"),
        ("other weights", "not replicas; start all ranks from the same weights"),
        ("other shapes", "differs between ranks: rank 0"),
    ],
)
def test_shards_are_refused_with_the_reason_on_every_rank(ranks: RankPool, kind: str, reason: str) -> None:
    texts = ranks.run("ranks_wrappers:refused", kind=kind)
    assert len(set(texts)) == 1
    assert reason in texts[0]


def test_a_replica_of_several_ranks_is_scored_by_those_that_see_a_loss(ranks: RankPool) -> None:
    for losses, weights in ranks.run("ranks_wrappers:stages"):
        assert losses == [3.0, 4.0]
        assert weights == [10.5, 20.5, 10.5, 20.5]  # stage by stage, not mixed


@pytest.mark.parametrize("scope", ["tensor", "model"])
def test_warm_init_has_the_paper_s_size_and_survives_the_constructor(ranks: RankPool, scope: str) -> None:
    for seen in ranks.run("ranks_policies:warm_init", scope=scope):
        assert seen["ratio"] == pytest.approx(1, abs=0.2)
        assert (seen["survived"], seen["apart"], seen["untouched"]) == (True, True, True)


def test_several_hyperparameters_at_once(ranks: RankPool) -> None:
    rates, decays, dropouts = ranks.run("ranks_explorations:hyperparameters_at_once")[0]
    middle = sum(rates) / 4
    assert sorted(rate / middle for rate in rates) == pytest.approx(multipliers(4, 1 / 9))
    assert len({round(one, 9) for one in decays}) == len({round(one, 9) for one in dropouts}) == 4


def test_dropout_scored_by_its_own_loss_draws_a_warning(ranks: RankPool) -> None:
    assert "the training loss is biased for dropout" in ranks.run("ranks_explorations:loss_bias")[0]


@pytest.mark.full
def test_dropout_lands_near_its_optimum_with_a_probe_and_collapses_without(ranks: RankPool) -> None:
    task = {"syncs": 50, "interval": 12, "start": 0.45, "best": 0.2}
    with_probe = ranks.run("ranks_explorations:dropout_exploration", probed=True, **task)[0]
    assert all(0.1 <= value <= 0.3 for value in with_probe[-10:]), with_probe
    without = ranks.run("ranks_explorations:dropout_exploration", probed=False, **task)[0]
    assert without[-1] < 0.05, without


@pytest.mark.full
def test_dropout_rises_from_next_to_nothing_on_its_own_scale(ranks: RankPool) -> None:
    """Around p = 0.01 the fan in log-odds has almost no width; on p itself it is as wide as anywhere."""
    task = {"syncs": 30, "interval": 12, "start": 0.01, "best": 0.2, "spread": 0.3}
    found = ranks.run("ranks_explorations:dropout_exploration", probed=True, transform="identity", **task)[0]
    assert all(0.1 <= value <= 0.3 for value in found[-10:]), found


def test_a_sync_sends_every_parameter_once(ranks: RankPool) -> None:
    """As much as the gradients of one step: a thousandth of the traffic at T=1000. Times:
    `benchmarks/hdet/cost.py`."""
    for seen in ranks.run("ranks_wrappers:traffic"):
        assert seen["parameters"] >= 10_000_000
        assert seen["bytes"] == 4 * seen["parameters"]
