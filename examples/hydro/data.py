"""Data that every machine has: the text of Python's standard library."""

import sysconfig
from pathlib import Path

import torch
from models import CONTEXT
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Text:
    """Rows of the standard library's bytes: every tenth file is for validation, so nothing is in both."""

    def __init__(self, validation_rows: int = 256) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self.train = _halves(_rows([file for number, file in enumerate(files) if number % 10]))
        rows = _rows([file for number, file in enumerate(files) if not number % 10])
        self.validation = _halves(rows[:: len(rows) // validation_rows][:validation_rows])

    def batch(self, step: int, rows: int, seed: int = 0) -> Batch:
        """Bytes and the bytes that follow them, both (rows, context)."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        picked = torch.randint(len(self.train[0]), (rows,), generator=generator)
        return self.train[0][picked], self.train[1][picked]


def _rows(files: list[Path]) -> Tensor:
    text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
    return text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT).long()


def _halves(rows: Tensor) -> Batch:
    return rows[:, :-1], rows[:, 1:]
