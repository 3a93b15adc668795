"""The process's global random generators: seeding, capturing and restoring them.

Python's generator always; NumPy's and PyTorch's (CPU, and CUDA once it is used) as soon as the script has
imported them.
"""

import hashlib
import random
import sys
from types import ModuleType
from typing import Any, Final

from headrace.trial.imported import once_imported

State = dict[str, Any]

_PURPOSE: Final = "generators"
_not_put_back: State = {}
"""Captured states of libraries that this process has not imported yet."""


def seed_all(seed: int) -> None:
    """Seeds every global generator of this process, including those of libraries that it imports later."""
    random.seed(seed)
    _not_put_back.clear()
    once_imported("numpy", lambda numpy: numpy.random.seed(seed % 2**32), purpose=_PURPOSE)
    once_imported("torch", lambda torch: torch.manual_seed(seed), purpose=_PURPOSE)


def derived(*parts: int) -> int:
    """A seed below 2**63 that depends on all of these numbers, the same in every process."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


def capture() -> State:
    """The state of every global generator, in plain values, arrays and tensors."""
    state: State = {"python": random.getstate(), **_not_put_back}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def digests() -> dict[str, bytes]:
    """A fingerprint of the state of each global generator: equal until something draws from it."""
    state = capture()
    found = {"python": repr(state["python"]).encode()}
    if "numpy" in state:
        numpy = state["numpy"]["state"]
        found["numpy"] = repr((numpy["key"].tobytes(), numpy["pos"])).encode()
    for name, tensors in (
        ("torch", [state["torch"]] if "torch" in state else []),
        ("cuda", state.get("cuda", [])),
    ):
        if tensors:
            found[name] = b"".join(bytes(tensor.tolist()) for tensor in tensors)
    return {name: hashlib.sha256(data).digest() for name, data in found.items()}


def restore(state: State) -> None:
    """Restores every captured generator, including those of libraries that are imported later. On a machine with
    fewer GPUs, restores those that exist.
    """
    random.setstate(state["python"])
    _not_put_back.clear()
    _not_put_back.update({name: value for name, value in state.items() if name != "python"})

    def put_back_numpy(numpy: ModuleType) -> None:
        numpy.random.set_state(_not_put_back.pop("numpy"))

    def put_back_torch(torch: ModuleType) -> None:
        torch.set_rng_state(_not_put_back.pop("torch"))
        cuda = _not_put_back.pop("cuda", [])
        if cuda and torch.cuda.is_available():
            for device, device_state in enumerate(cuda[: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(device_state, device)

    if "numpy" in state:
        once_imported("numpy", put_back_numpy, purpose=_PURPOSE)
    if "torch" in state:
        once_imported("torch", put_back_torch, purpose=_PURPOSE)
