"""The GPUs of this machine for `headrace doctor`, and whether trials can share them."""

import os
import socket
from collections.abc import Iterator

from headrace import mps
from headrace.cli import wording
from headrace.cli.finding import Finding, Level
from headrace.home import home_dir


def findings() -> Iterator[Finding]:
    """Checks the driver and MPS, and changes nothing."""
    yield _gpus()
    pipe = mps.pipe_directory(os.environ, home_dir() / "workers" / socket.gethostname())
    facts = mps.look(pipe, os.environ)
    if facts.cards or facts.control is not None:
        yield from _sharing(facts, os.geteuid())


def _sharing(facts: mps.Facts, uid: int) -> Iterator[Finding]:
    """Whether trials of a worker that this user starts here share GPUs through MPS."""
    if divided := [card.uuid for card in facts.cards if card.divided]:
        text = f"{', '.join(divided)}: a worker here offers the instances; trials do not share them"
        yield Finding(Level.OK, "MIG", text, "Give each trial an instance (gpus: 1).")
    if facts.cards and len(divided) == len(facts.cards):
        return
    found = mps.obstacle(facts, uid=uid, trials_uid=uid)
    if found is not None:
        yield Finding(Level.WARN, "MPS", f"shares of a GPU take turns here: {found.text}", found.remedy)
    elif facts.control is not None:
        text = f"a control daemon runs in {facts.pipe} (process {facts.control.pid}); a worker here uses it"
        yield Finding(Level.OK, "MPS", text)
    elif mps.has_sockets(facts.pipe):
        yield Finding(
            Level.WARN,
            "MPS",
            f"{facts.pipe} has sockets of a control daemon that does not run, or runs in another container",
            "In containers: give worker and daemon one process namespace, or let the worker start its own.",
        )
    else:
        yield Finding(Level.OK, "MPS", f"a worker here starts it in {facts.pipe} when trials share a GPU")
    for why in mps.closed(facts):
        yield Finding(Level.WARN, "MPS", why.text, why.remedy)


def _gpus() -> Finding:
    try:
        import pynvml
    except ImportError:
        return Finding(
            Level.WARN,
            "GPUs",
            "not checked: the package nvidia-ml-py is missing",
            "pip install 'headrace[worker]'",
        )
    try:
        pynvml.nvmlInit()
    except pynvml.NVMLError:
        return Finding(Level.OK, "GPUs", "none on this machine; a worker here offers CPU slots")
    try:
        names = []
        for index in range(pynvml.nvmlDeviceGetCount()):
            device = pynvml.nvmlDeviceGetHandleByIndex(index)
            memory = pynvml.nvmlDeviceGetMemoryInfo(device)
            name = pynvml.nvmlDeviceGetName(device)
            text = name.decode() if isinstance(name, bytes) else str(name)
            names.append(f"{text} ({wording.size(int(memory.total))})")
    except pynvml.NVMLError as error:
        return Finding(Level.WARN, "GPUs", f"the driver does not answer: {error}", "Run nvidia-smi.")
    finally:
        pynvml.nvmlShutdown()
    return Finding(
        Level.OK, "GPUs", ", ".join(names) or "none on this machine; a worker here offers CPU slots"
    )
