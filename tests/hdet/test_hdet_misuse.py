"""Wrong uses that training reveals: all ranks get the error, at the first step where it is visible. Correct use
passes."""

import pytest
from rank_pool import RankPool

TIMEOUT_S = 120
APIS = ("one_cycle", "controller")


@pytest.mark.parametrize("api", APIS)
def test_shared_gradients_are_looked_for_at_the_first_step(ranks: RankPool, api: str) -> None:
    told = ranks.run("ranks_misuse:gradients", timeout_s=TIMEOUT_S, api=api, wrapped=False)
    assert len(set(told)) == 1
    assert told[0][0] == 1
    assert told[0][1].startswith(
        "replicas step on different gradients, and shared ones are expected: wrap the model"
    )
    assert (
        ranks.run("ranks_misuse:gradients", timeout_s=TIMEOUT_S, api=api, wrapped=True)
        == [(7, "nothing")] * 4
    )


def test_gradients_that_ddp_averages_are_no_local_ones(ranks: RankPool) -> None:
    told = ranks.run(
        "ranks_misuse:gradients", timeout_s=TIMEOUT_S, api="controller", wrapped=True, mode="local_grad"
    )
    assert len(set(told)) == 1
    assert told[0][0] == 3
    assert told[0][1].startswith(
        "replicas step on the same gradients under mode='local_grad': DistributedDataPar"
    )
    told = ranks.run(
        "ranks_misuse:gradients", timeout_s=TIMEOUT_S, api="controller", wrapped=False, mode="local_grad"
    )
    assert told == [(7, "nothing")] * 4


@pytest.mark.parametrize(
    ("kind", "step", "text"),
    [
        ("rate", 0, "the schedule's rates differs between ranks: rank 0 has [0.1], rank 2 has [0.2]"),
        ("class", 0, "the schedule differs between ranks: rank 0 has 'StepLR', rank 2 has 'ConstantLR'"),
        (
            "later",
            4,
            "the schedule's rates at step 4 differs between ranks: rank 0 has [0.1], rank 2 has [0.01",
        ),
        ("same", 8, "nothing"),
    ],
)
def test_other_schedules_on_a_rank_are_told_to_all(ranks: RankPool, kind: str, step: int, text: str) -> None:
    told = ranks.run("ranks_misuse:schedules", timeout_s=TIMEOUT_S, kind=kind)
    assert len(set(told)) == 1
    assert told[0][0] == step
    assert told[0][1].startswith(text)


@pytest.mark.parametrize("kind", ["numpy", "userdict"])
def test_probe_batches_without_tensors_are_compared(ranks: RankPool, kind: str) -> None:
    told = ranks.run("ranks_misuse:probed", timeout_s=TIMEOUT_S, kind=kind, differ=True)
    assert len(set(told)) == 1
    assert told[0].startswith("replicas were given different probe batches at sync 1")
    assert ranks.run("ranks_misuse:probed", timeout_s=TIMEOUT_S, kind=kind, differ=False) == ["nothing"] * 4


@pytest.mark.parametrize("api", APIS)
def test_ranks_that_meet_at_different_steps_are_told_so(ranks: RankPool, api: str) -> None:
    told = ranks.run("ranks_misuse:steps_apart", timeout_s=TIMEOUT_S, api=api)
    assert len(set(told)) == 1
    assert "after different numbers of steps: replica 0 3, replica 1 6, replica 2 3, replica 3 3" in told[0]


@pytest.mark.parametrize("api", APIS)
def test_a_model_that_ddp_overwrote_is_refused_in_mid_interval(ranks: RankPool, api: str) -> None:
    told = ranks.run("ranks_misuse:loaded_before_ddp", timeout_s=TIMEOUT_S, api=api, before=True)
    assert len(set(told)) == 1
    assert "rank 1: replica 1's parameters are not those that its state was saved with" in told[0]
    assert "rank 0" not in told[0].split(":")[0]
    told = ranks.run("ranks_misuse:loaded_before_ddp", timeout_s=TIMEOUT_S, api=api, before=False)
    assert told == ["nothing"] * 4


@pytest.mark.parametrize("api", APIS)
def test_one_file_of_a_sync_point_serves_all_ranks(ranks: RankPool, api: str) -> None:
    seen = ranks.run("ranks_misuse:one_file_for_all", timeout_s=TIMEOUT_S, api=api)
    assert len({rates[0] for rates, _, _ in seen}) == 4
    for rates, apart, equal in seen:
        assert rates[0] == rates[1] == rates[2]
        assert apart > 0
        assert equal


def test_a_rank_without_a_state_stops_all(ranks: RankPool) -> None:
    told = ranks.run("ranks_misuse:nothing_to_load", timeout_s=TIMEOUT_S)
    assert set(told) == {
        "rank 1: the state was not written by HDETScheduler: it has no base_rates, base_scheduler, controller"
    }


@pytest.mark.full
def test_without_a_signal_the_drop_in_is_one_cycle_and_with_one_it_moves(ranks: RankPool) -> None:
    factors, equal = ranks.run("ranks_misuse:factor_moves", timeout_s=TIMEOUT_S, signal=False)[0]
    assert equal
    assert len(factors) == 66
    factors, equal = ranks.run("ranks_misuse:factor_moves", timeout_s=TIMEOUT_S, signal=True)[0]
    assert not equal
    assert factors[-1] > 10
