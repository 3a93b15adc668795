"""Checksums of arrays and tensors: every byte counts, at several gigabytes per second.

A cryptographic hash reads about one. So 64-bit words are multiplied by random odd numbers, one for each position
in a block, and summed; the sums of all blocks are hashed. A word that changes alone always changes its sum. Before
the multiplication, a word's upper half is folded into its lower half: numbers such as 1.0 and 2.0 differ in their
highest bits alone, and a product keeps only the lower ones.

Tensors have a version (`_version`), but writes through `.data` or through a NumPy view do not raise it. So it is
no substitute for reading them.
"""

import mmap
import random
import sys
from collections.abc import Iterator
from functools import cache
from hashlib import blake2b
from typing import Any, Final

_WORDS: Final = 1 << 13
"""Words in a block: three blocks fit into the second-level cache."""
_DEVICE_WORDS: Final = 1 << 22
_SMALL_BYTES: Final = 1 << 14
_COPY_BYTES: Final = 1 << 26
"""An array that is not contiguous is copied in parts of this size."""


def of_bytes(data: "bytes | bytearray | memoryview") -> bytes:
    """The checksum of a buffer."""
    return blake2b(data, digest_size=16).digest()


def of_array(array: Any) -> bytes:
    """The checksum of an array's elements, without its type and shape. Not for arrays of objects."""
    found = blake2b(digest_size=16)
    for part in _contiguous_parts(array):
        _add_bytes(found, part)
    return found.digest()


def of_tensor(tensor: Any) -> bytes:
    """The checksum of a dense tensor's elements, without its type and shape, on any device."""
    torch: Any = sys.modules["torch"]
    flat = tensor.detach()
    if not _is_dense(flat):
        flat = flat.contiguous()
    size = flat.numel() * flat.element_size()
    raw = torch.empty(0, dtype=torch.uint8, device=flat.device)
    raw.set_(flat.untyped_storage(), flat.storage_offset() * flat.element_size(), (size,), (1,))
    found = blake2b(digest_size=16)
    if raw.device.type == "cpu" and "numpy" in sys.modules:
        _add_bytes(found, raw.numpy())
    else:
        _add_on_device(found, raw, torch)
    return found.digest()


def is_of_file(array: Any) -> bool:
    """Whether an array's elements are in a file that is mapped into memory."""
    while array is not None:
        if isinstance(array, mmap.mmap):
            return True
        array = array.obj if isinstance(array, memoryview) else getattr(array, "base", None)
    return False


def _contiguous_parts(array: Any) -> Iterator[Any]:
    """The bytes of an array, as contiguous arrays."""
    numpy: Any = sys.modules["numpy"]
    plain = numpy.asarray(array)
    if not plain.nbytes:
        return
    by_stride = plain.transpose(sorted(range(plain.ndim), key=lambda axis: -abs(plain.strides[axis])))
    if by_stride.flags.c_contiguous:
        yield by_stride.reshape(-1).view(numpy.uint8)
        return
    rows = max(1, _COPY_BYTES // max(1, plain.nbytes // len(plain)))
    for start in range(0, len(plain), rows):
        yield numpy.ascontiguousarray(plain[start : start + rows]).reshape(-1).view(numpy.uint8)


def _add_bytes(found: "blake2b", raw: Any) -> None:
    """Adds an array of bytes."""
    if raw.nbytes <= _SMALL_BYTES:
        found.update(raw)
        return
    numpy: Any = sys.modules["numpy"]
    weights, block = _weights(_WORDS), numpy.empty(_WORDS, numpy.uint64)
    words = raw[: raw.nbytes & ~7].view(numpy.uint64)
    half = numpy.uint64(32)
    for start in range(0, len(words), _WORDS):
        part = words[start : start + _WORDS]
        folded = block[: len(part)]
        numpy.right_shift(part, half, out=folded)
        numpy.bitwise_xor(folded, part, out=folded)
        numpy.multiply(folded, weights[: len(part)], out=folded)
        found.update(numpy.add.reduce(folded))
    found.update(raw[raw.nbytes & ~7 :])


def _add_on_device(found: "blake2b", raw: Any, torch: Any) -> None:
    """Adds a tensor of bytes, computed where it is."""
    size = raw.numel()
    sums = []
    if whole := size & ~7:
        words = (raw if raw.data_ptr() % 8 == 0 else raw.clone())[:whole].view(torch.int64)
        weights = _device_weights(str(raw.device))
        for start in range(0, len(words), _DEVICE_WORDS):
            part = words[start : start + _DEVICE_WORDS]
            sums.append((((part >> 32) ^ part) * weights[: len(part)]).sum())
        found.update(repr(torch.stack(sums).tolist()).encode())
    found.update(bytes(raw[whole:].tolist()))


def _is_dense(tensor: Any) -> bool:
    """Whether the elements fill one stretch of memory, in any order of the axes."""
    step = 1
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if size == 0:
            return True
        if size > 1 and stride != step:
            return False
        step *= size
    return True


@cache
def _weights(count: int) -> Any:
    numpy: Any = sys.modules["numpy"]
    return numpy.frombuffer(_source(count), numpy.uint64) | numpy.uint64(1)


@cache
def _device_weights(device: str) -> Any:
    torch: Any = sys.modules["torch"]
    made = torch.frombuffer(bytearray(_source(_DEVICE_WORDS)), dtype=torch.int64)
    return (made | 1).to(device)


def _source(count: int) -> bytes:
    return random.Random(0).randbytes(count * 8)  # noqa: S311 - no secret, and no generator of the trial's
