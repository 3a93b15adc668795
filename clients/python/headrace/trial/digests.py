"""Digests of encoded state: equal exactly if every bit is equal, on any rank.

The input is always output of `codec.encode`. The digest of a tensor covers its type, shape and values, even if
these are computed on reading (a conjugate view). It does not cover the device, because each rank of a gang has
its own.
"""

import ctypes
import hashlib
import io
import sys
from typing import Any


def digest(plain: Any) -> str:
    """The SHA-256 of an encoded value, as text."""
    hasher = hashlib.sha256()
    _feed(hasher, plain)
    return hasher.hexdigest()


def _feed(hasher: Any, value: Any) -> None:
    torch = sys.modules.get("torch")
    if isinstance(value, dict):
        hasher.update(f"dict {len(value)};".encode())
        for key, item in value.items():
            _feed(hasher, key)
            _feed(hasher, item)
    elif isinstance(value, list | tuple):
        hasher.update(f"{type(value).__name__} {len(value)};".encode())
        for item in value:
            _feed(hasher, item)
    elif torch is not None and isinstance(value, torch.Tensor):
        _feed_tensor(hasher, value.detach(), torch)
    else:  # a plain value, or a dtype, a device or a size
        text = f"{type(value).__name__} {value!r}"
        hasher.update(f"{len(text)} {text};".encode())


def _feed_tensor(hasher: Any, tensor: Any, torch: Any) -> None:
    hasher.update(f"tensor {tensor.dtype} {tensor.layout} {tuple(tensor.shape)} ".encode())
    parts: list[Any] = []
    match tensor.layout:
        case torch.sparse_coo:  # the parts of an uncoalesced tensor are not public
            hasher.update(f"{tensor.is_coalesced()};".encode())
            parts = [tensor._indices(), tensor._values()]
        case torch.sparse_csr | torch.sparse_bsr:
            parts = [tensor.crow_indices(), tensor.col_indices(), tensor.values()]
        case torch.sparse_csc | torch.sparse_bsc:
            parts = [tensor.ccol_indices(), tensor.row_indices(), tensor.values()]
        case torch.strided if not tensor.is_quantized:
            _feed_bytes(hasher, tensor)
        case _:  # quantized, nested, of another library: in its serialized form
            written = io.BytesIO()
            torch.save(tensor.cpu(), written)
            hasher.update(written.getvalue())
    for part in parts:
        _feed_tensor(hasher, part, torch)


def _feed_bytes(hasher: Any, tensor: Any) -> None:
    flat = tensor.resolve_conj().resolve_neg().to("cpu").contiguous()
    size = flat.numel() * flat.element_size()
    hasher.update(f"{size};".encode())
    if size:
        hasher.update((ctypes.c_char * size).from_address(flat.data_ptr()))
