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
    found = mps.obstacle(facts, uid=uid, trials_uid=uid)
    served = found is None and facts.control is not None and facts.control.is_site_wide
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
    for card in facts.cards:
        if card.divided:
            yield Finding(
                Level.OK, "MIG", f"GPU {card.uuid} is divided: {mps.OF_MIG.text}", mps.OF_MIG.remedy
            )
        elif (closed := mps.card_obstacle(card, served=served)) is not None:
            yield Finding(Level.WARN, "MPS", f"{closed.text}: trials cannot share it", closed.remedy)


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
