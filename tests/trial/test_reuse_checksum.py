"""Checksums of arrays and tensors: every change of a byte or of an order changes them."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import torch

from headrace.trial.reuse import checksum

_LENGTH = 40_003
"""More than one block, and bytes beyond the last whole word."""


def _swapped(array: Any, one: int, other: int) -> Any:
    array[[one, other]] = array[[other, one]]
    return array


def _set(array: Any, place: int, value: float) -> Any:
    array[place] = value
    return array


CHANGES: dict[str, Callable[[Any], Any]] = {
    "first": lambda array: _set(array, 0, 9),
    "last": lambda array: _set(array, _LENGTH - 1, 9),
    "in the second block": lambda array: _set(array, 20_000, 9),
    "two swapped": lambda array: _swapped(array, 1, 2),
    "two swapped, a block apart": lambda array: _swapped(array, 1, 1 + 8192 * 2),
    "reversed": lambda array: array[::-1].copy(),
}


@pytest.mark.parametrize("kind", ["f4", "f8", "i8", "u1", "f2", "c8", "M8[s]", "i2"])
@pytest.mark.parametrize("change", CHANGES)
def test_changed_array(kind: str, change: str) -> None:
    array = (np.arange(_LENGTH) % 5).astype(kind)
    assert checksum.of_array(array.copy()) == checksum.of_array(array)
    assert checksum.of_array(CHANGES[change](array.copy())) != checksum.of_array(array)


@pytest.mark.parametrize("seed", range(8))
def test_shuffled_labels(seed: int) -> None:
    labels = np.repeat([1.0, 2.0], 20_000)
    shuffled = np.random.default_rng(seed).permutation(labels)
    assert checksum.of_array(shuffled) != checksum.of_array(labels)


VIEWS: dict[str, Callable[[Any], Any]] = {
    "transposed": lambda array: array.T,
    "every other": lambda array: array[:, ::2],
    "backwards": lambda array: array[::-1],
    "no elements": lambda array: array[:0],
    "one": lambda array: array[3, 4],
    "repeated": lambda array: np.broadcast_to(array[:, :, None], (200, 300, 2)),
}


@pytest.mark.parametrize("view", VIEWS)
def test_views(view: str) -> None:
    array = np.arange(60_000.0).reshape(200, 300)
    seen = VIEWS[view](array)
    before = checksum.of_array(seen)
    assert checksum.of_array(VIEWS[view](array.copy())) == before
    if seen.size:
        array[3, 4] += 1
        assert (checksum.of_array(VIEWS[view](array)) != before) == (view != "no elements")


TENSORS: dict[str, Callable[[Any], Any]] = {
    "whole": lambda tensor: tensor,
    "transposed": lambda tensor: tensor.T,
    "part": lambda tensor: tensor[2:, 4:],
    "row": lambda tensor: tensor[3],
    "expanded": lambda tensor: tensor[3, 4].expand(5),
}


@pytest.mark.parametrize("view", TENSORS)
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_tensors(view: str, dtype: torch.dtype) -> None:
    tensor = (torch.arange(60_000) % 2).reshape(200, 300).to(dtype)
    before = checksum.of_tensor(TENSORS[view](tensor))
    assert checksum.of_tensor(TENSORS[view](tensor.clone())) == before
    tensor[3, 4] = 1 - tensor[3, 4].to(torch.int64)
    assert checksum.of_tensor(TENSORS[view](tensor)) != before


@pytest.mark.parametrize("length", [0, 7, 8, 9, 4_000_003])
def test_on_device(length: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on a GPU: computed by PyTorch."""
    monkeypatch.setattr(checksum, "_DEVICE_WORDS", 1 << 18)
    monkeypatch.setattr(
        checksum,
        "_add_bytes",
        lambda found, raw: checksum._add_on_device(found, torch.from_numpy(raw), torch),
    )
    checksum._device_weights.cache_clear()
    tensor = (torch.arange(length) % 3).to(torch.uint8)
    before = checksum.of_tensor(tensor)
    assert checksum.of_tensor(tensor.clone()) == before
    for place in {0, length // 2, length - 1} if length else ():
        changed = tensor.clone()
        changed[place] += 1
        assert checksum.of_tensor(changed) != before
    if length > 1_000_000:
        assert checksum.of_tensor(tensor.flip(0)) != before


def test_mapped_file(tmp_path: Any) -> None:
    np.zeros(8).tofile(tmp_path / "data")
    mapped = np.memmap(tmp_path / "data", dtype=float, mode="r")
    assert checksum.is_of_file(mapped)
    assert checksum.is_of_file(np.asarray(mapped)[2:])
    assert not checksum.is_of_file(np.zeros(8)[2:])
    assert not checksum.is_of_file(np.frombuffer(bytes(8)))
