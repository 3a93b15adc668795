"""Digests differ exactly where values differ, alike in every process."""

import os
import subprocess
import sys
from functools import partial
from typing import Any

import pytest
import torch

from headrace.trial.codec import decode, encode
from headrace.trial.digests import digest

DENSE = torch.tensor([[0.0, 2.0], [3.0, 0.0]])
COMPLEX = torch.tensor([1 + 2j, 3 - 1j])


def of(value: Any) -> str:
    return digest(encode(value, "t.state['x']", for_json=False))


@pytest.mark.filterwarnings("ignore:Sparse")  # PyTorch calls some layouts a beta, once in a process
@pytest.mark.parametrize("layout", ["sparse_coo", "sparse_csr", "sparse_csc", "sparse_bsr", "sparse_bsc"])
def test_sparse_tensors(layout: str) -> None:
    def sparse(dense: torch.Tensor) -> torch.Tensor:
        blocks = (1, 1) if layout in ("sparse_bsr", "sparse_bsc") else None
        return dense.to_sparse(layout=getattr(torch, layout), blocksize=blocks)

    assert of(sparse(DENSE)) == of(sparse(DENSE.clone()))
    others = [2 * DENSE, DENSE.T.contiguous(), DENSE.double()]
    assert len({of(sparse(DENSE)), of(DENSE), *(of(sparse(other)) for other in others)}) == 5


def test_sparse_tensors_that_are_not_coalesced() -> None:
    coo = partial(torch.sparse_coo_tensor, size=(2, 2), check_invariants=True)
    indices, values = torch.tensor([[0, 0], [1, 1]]), torch.tensor([1.0, 2.0])
    twice = coo(indices, values)
    assert of(twice) == of(coo(indices.clone(), values.clone()))
    assert of(twice) != of(coo(indices, values.flip(0)))
    assert of(twice) != of(twice.coalesce())


@pytest.mark.parametrize("view", [COMPLEX.conj(), torch._neg_view(DENSE)])
def test_views_that_are_computed_when_they_are_read(view: torch.Tensor) -> None:
    memory = COMPLEX if view.is_complex() else DENSE
    assert of(view) == of(view.clone())
    assert of(view) != of(memory)


@pytest.mark.filterwarnings("ignore::UserWarning", "ignore::DeprecationWarning")  # PyTorch plans to drop them
def test_quantized_tensors() -> None:
    values = torch.tensor([1.0, 2.0])
    narrow, wide = (torch.quantize_per_tensor(values * by, 0.1 * by, 0, torch.qint8) for by in (1, 2))
    assert of(narrow) == of(narrow.clone())
    assert of(narrow) != of(wide), "the same integers on another scale"


def test_strided_tensors() -> None:
    assert of(DENSE.T) == of(DENSE.T.contiguous()) != of(DENSE)
    assert of(DENSE[:0]) != of(DENSE[:, :0])
    assert of(DENSE) != of(DENSE.view(torch.int32))
    assert of(torch.tensor(0.0)) != of(torch.tensor(-0.0))


SETS = """
from headrace.trial.codec import encode
from headrace.trial.digests import digest
print(digest(encode({*map(str, range(20)), 7, (1, "a"), frozenset("abc")}, "x", for_json=False)))
"""


def test_sets_have_one_digest_in_every_process() -> None:
    told = {
        subprocess.run(
            [
                sys.executable,
                "-c",
                SETS,
            ],
            env={**os.environ, "PYTHONHASHSEED": seed},
            capture_output=True,
            text=True,
            check=True,
        ).stdout
        for seed in ("1", "2", "3")
    }
    assert len(told) == 1
    mixed = {"a", 1, None, (2, "b"), b"c", frozenset({3, "d"})}
    assert decode(encode(mixed, "x", for_json=True)) == mixed
    assert of({"a"}) != of(frozenset({"a"})) != of({"b"})
