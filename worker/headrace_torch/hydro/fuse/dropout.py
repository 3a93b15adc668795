"""Dropout masks from a counter: a member's masks depend on its seed, its step and the call, and on nothing else.

A generator's masks depend on earlier draws. Here element i of call c at step t of a member with seed s is

    h(i, c, key(s, t)) ≥ p·2³²

with a 32-bit finalizer h (that of MurmurHash3, with a second key folded in between its two products). So masks are
the same fused and alone, at any position in any group, and after a resume. `c` counts the forward pass's dropouts.
"""

from collections.abc import Sequence

import torch
from torch import Tensor

_GOLDEN = 0x9E3779B97F4A7C15
_MASK64, _MASK32 = (1 << 64) - 1, (1 << 32) - 1
_M1, _M2, _INDEX = 0x85EBCA6B, 0xC2B2AE35, 0x9E3779B1


def key(seed: int, step: int) -> int:
    """Returns a 64-bit key for a member's step (SplitMix64 over both)."""
    return _split_mix(_split_mix(seed & _MASK64) ^ (step & _MASK64))


def _split_mix(value: int) -> int:
    value = (value + _GOLDEN) & _MASK64
    value = ((value ^ (value >> 30)) * 0xBF58476D1CE4E5B9) & _MASK64
    value = ((value ^ (value >> 27)) * 0x94D049BB133111EB) & _MASK64
    return value ^ (value >> 31)


def signed(word: int) -> int:
    """The int32 with a word's low 32 bits."""
    word &= _MASK32
    return word - (1 << 32) if word >> 31 else word


class Masks:
    """The masks of one forward pass of n members.

    Args:
        keys: one 64-bit key per member (`key`).
        rates: a member's rate, or None for the model's own.
    """

    def __init__(self, keys: Sequence[int], rates: Sequence[float | None], device: torch.device) -> None:
        """Moves two words and a rate per member to the device."""
        words = torch.tensor(
            [[signed(one) for one in keys], [signed(one >> 32) for one in keys]], dtype=torch.int32
        )
        self._low, self._high = words.to(device).unsqueeze(-1)
        self._rates = list(rates)
        self._device = device
        self._calls = 0

    def scales(self, shape: Sequence[int], p: float, dtype: torch.dtype) -> Tensor:
        """Returns (n, *shape): 1/(1−p) where an element is kept, 0 where it is dropped, for the next call.

        Args:
            shape: of one member's mask.
            p: the model's own rate.
            dtype: of the activations.
        """
        numel = 1
        for extent in shape:
            numel *= extent
        rates = [p if rate is None else rate for rate in self._rates]
        thresholds = [min(round(rate * 2**32), 2**32 - 1) - 2**31 for rate in rates]
        kept = self._words(numel) >= torch.tensor(thresholds, device=self._device).to(torch.int32).unsqueeze(
            -1
        )
        factors = torch.tensor([0.0 if rate >= 1 else 1 / (1 - rate) for rate in rates], dtype=dtype)
        scales: Tensor = kept * factors.to(self._device).unsqueeze(-1)
        return scales.view(len(rates), *shape)

    def active(self, p: float) -> bool:
        """Whether any member drops anything at a call with the model's rate p."""
        return any((p if rate is None else rate) > 0 for rate in self._rates)

    def _words(self, numel: int) -> Tensor:
        """One uniformly distributed int32 per member and element, (n, numel)."""
        call = signed(_split_mix(self._calls))
        self._calls += 1
        h: Tensor = torch.arange(numel, dtype=torch.int32, device=self._device).mul_(signed(_INDEX))
        h = h + (self._low + call)
        h ^= (h >> 16) & 0xFFFF
        h *= signed(_M1)
        h ^= self._high
        h ^= (h >> 13) & 0x7FFFF
        h *= signed(_M2)
        h ^= (h >> 16) & 0xFFFF
        return h
