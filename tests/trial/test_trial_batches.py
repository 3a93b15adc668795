"""`ResumableBatches`: interrupted anywhere, it yields the same batches as without the interruption."""

from itertools import chain

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.utils.data import DataLoader, TensorDataset

from headrace.trial import ResumableBatches


def batches(
    size: int = 10, batch_size: int = 3, *, seed: int = 1, drop_last: bool = False
) -> ResumableBatches:
    return ResumableBatches(size, batch_size, seed=seed, drop_last=drop_last)


@given(
    size=st.integers(1, 30),
    batch_size=st.integers(1, 12),
    drop_last=st.booleans(),
    pieces=st.lists(st.integers(0, 15), max_size=8),
)
def test_interrupted_anywhere_it_continues(
    size: int, batch_size: int, drop_last: bool, pieces: list[int]
) -> None:
    drop_last = drop_last and batch_size <= size
    expected = list(batches(size, batch_size, drop_last=drop_last).take(sum(pieces)))
    state = batches(size, batch_size, drop_last=drop_last).state_dict()
    given_out = []
    for count in pieces:
        process = batches(size, batch_size, drop_last=drop_last)
        process.load_state_dict(state)
        given_out += list(process.take(count))
        state = process.state_dict()
    assert given_out == expected


@given(size=st.integers(1, 30), batch_size=st.integers(1, 12))
def test_an_epoch_has_every_index_once(size: int, batch_size: int) -> None:
    source = batches(size, batch_size)
    first, second = list(source), list(source)
    assert len(first) == len(second) == len(source)
    for epoch in (first, second):
        assert sorted(index for batch in epoch for index in batch) == list(range(size))
    assert source.state_dict()["epoch"] == 2


def test_the_state_while_a_batch_is_in_use_names_the_next() -> None:
    source = batches()
    seen = []
    for batch in source:
        resumed = batches()
        resumed.load_state_dict(source.state_dict())
        seen.append(batch)
        assert next(iter(resumed)) not in seen
    assert (source.epoch, source.position) == (1, 0)


def test_epochs_and_seeds_differ_and_repeat() -> None:
    source = batches(100, 100)
    (first,), (second,) = list(source), list(source)
    assert first != second
    assert list(batches(100, 100)) == [first]
    assert list(batches(100, 100, seed=2)) != [first]
    assert list(ResumableBatches(5, 2, seed=0, shuffle=False)) == [[0, 1], [2, 3], [4]]


def test_it_is_a_batch_sampler() -> None:
    dataset = TensorDataset(torch.arange(10))
    source = batches()
    loader = DataLoader(dataset, batch_sampler=source)
    assert len(loader) == 4
    expected = list(batches().take(8))
    iterator = iter(loader)
    got = [next(iterator)[0].tolist() for _ in range(2)]
    resumed = batches()
    resumed.load_state_dict(source.state_dict())
    for _ in range(2):
        got += [batch.tolist() for (batch,) in DataLoader(dataset, batch_sampler=resumed)]
    assert got == expected


def test_other_data_is_refused() -> None:
    source = batches()
    next(iter(source))
    with pytest.raises(ValueError, match="the checkpoint's batches have batch_size=3, these have 4"):
        batches(batch_size=4).load_state_dict(source.state_dict())
    with pytest.raises(ValueError, match="the checkpoint's batches have size=10, these have 11"):
        batches(11).load_state_dict(batches().state_dict())
    with pytest.raises(ValueError, match="must be at least 1, not 0 and 3"):
        batches(0)
    with pytest.raises(ValueError, match="there is no batch at all"):
        batches(2, 3, drop_last=True)


def test_a_trial_that_copied_another_continues_with_its_data() -> None:
    donor = batches(seed=1)
    list(donor)
    copy = batches(seed=2)
    copy.load_state_dict(donor.state_dict())
    assert list(copy) == list(donor)


def test_batches_may_change_size_between_epochs() -> None:
    donor = batches(batch_size=3)
    list(donor)
    copy = batches(batch_size=5)
    copy.load_state_dict(donor.state_dict())
    assert list(chain.from_iterable(copy)) == list(chain.from_iterable(donor))
