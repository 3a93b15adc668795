"""Data that every machine has: the text of Python's standard library, and scikit-learn's handwritten digits."""

import sysconfig
from pathlib import Path

import torch
from models import CONTEXT
from sklearn.datasets import load_digits
from torch import Tensor

Batch = tuple[Tensor, Tensor]


class Text:
    """Rows of the standard library's bytes: every tenth file is for validation, so nothing is in both."""

    def __init__(self, validation_rows: int = 256) -> None:
        files = sorted(Path(sysconfig.get_path("stdlib")).glob("*.py"))
        self._train = self._rows([file for number, file in enumerate(files) if number % 10])
        rows = self._rows([file for number, file in enumerate(files) if not number % 10])
        rows = rows[:: len(rows) // validation_rows][:validation_rows]
        self.validation = rows[:, :-1], rows[:, 1:]

    def batch(self, step: int, rows: int, seed: int = 0) -> Batch:
        """Bytes and the bytes that follow them, both (rows, context)."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        picked = self._train[torch.randint(len(self._train), (rows,), generator=generator)]
        return picked[:, :-1], picked[:, 1:]

    @staticmethod
    def _rows(files: list[Path]) -> Tensor:
        text = torch.frombuffer(bytearray(b"".join(file.read_bytes() for file in files)), dtype=torch.uint8)
        return text[: (len(text) - 1) // CONTEXT * CONTEXT + 1].unfold(0, CONTEXT + 1, CONTEXT).long()


class Digits:
    """Images (rows, 1, 8, 8) with zero mean and unit variance, and their classes; every fourth is for validation."""

    def __init__(self) -> None:
        digits = load_digits()
        images = torch.tensor(digits.images, dtype=torch.float32).unsqueeze(1)
        images = (images - images.mean()) / images.std()
        labels = torch.tensor(digits.target)
        held_out = torch.arange(len(labels)) % 4 == 0
        self._train = images[~held_out], labels[~held_out]
        self.validation = images[held_out], labels[held_out]

    def batch(self, step: int, rows: int, seed: int = 0) -> Batch:
        """Images and classes."""
        generator = torch.Generator().manual_seed(1_000_003 * seed + step)
        picked = torch.randint(len(self._train[1]), (rows,), generator=generator)
        return self._train[0][picked], self._train[1][picked]
