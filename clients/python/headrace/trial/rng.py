"""The process's global random generators: seeded, captured and put back.

Python's own always; NumPy's and PyTorch's (CPU, and CUDA once it is in use) where the script has imported
them.
"""

import hashlib
import random
import sys
from typing import Any

State = dict[str, Any]


def seed_all(seed: int) -> None:
    """Seeds every global generator that exists in this process."""
    random.seed(seed)
    if (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.seed(seed % 2**32)
    if (torch := sys.modules.get("torch")) is not None:
        torch.manual_seed(seed)


def derived(*parts: int) -> int:
    """A seed below 2**63 that depends on all of these numbers, the same in every process."""
    return int.from_bytes(hashlib.sha256("/".join(map(str, parts)).encode()).digest()[:8]) >> 1


def capture() -> State:
    """The state of every global generator, in plain values, arrays and tensors."""
    state: State = {"python": random.getstate()}
    if (numpy := sys.modules.get("numpy")) is not None:
        state["numpy"] = numpy.random.get_state(legacy=False)
    if (torch := sys.modules.get("torch")) is not None:
        state["torch"] = torch.get_rng_state()
        if torch.cuda.is_available() and torch.cuda.is_initialized():
            state["cuda"] = torch.cuda.get_rng_state_all()
    return state


def digest() -> bytes:
    """Of the state of every global generator: equal while nobody draws."""
    state = capture()
    hasher = hashlib.sha256(repr(state["python"]).encode())
    if "numpy" in state:
        hasher.update(
            repr((state["numpy"]["state"]["key"].tobytes(), state["numpy"]["state"]["pos"])).encode()
        )
    for tensor in [*([state["torch"]] if "torch" in state else []), *state.get("cuda", [])]:
        hasher.update(bytes(tensor.tolist()))
    return hasher.digest()


def restore(state: State) -> None:
    """Puts every captured generator back; on a machine with fewer GPUs, those that are there."""
    random.setstate(state["python"])
    if "numpy" in state and (numpy := sys.modules.get("numpy")) is not None:
        numpy.random.set_state(state["numpy"])
    if "torch" in state and (torch := sys.modules.get("torch")) is not None:
        torch.set_rng_state(state["torch"])
        if "cuda" in state and torch.cuda.is_available():
            for device, device_state in enumerate(state["cuda"][: torch.cuda.device_count()]):
                torch.cuda.set_rng_state(device_state, device)
