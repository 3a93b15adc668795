"""The name of a worker in its certificate: `spiffe://headrace/worker/NAME`, in the subject's alternative names.

The certificate also has one host name, the same for all workers. With it, programs next to a worker can use the
certificate as servers: bubble agents, for each other. No real host has this name, so a worker cannot pose as a
scheduler.
"""

import re
from typing import Final

WORKERS_HOST: Final = "worker.headrace.invalid"
_WORKER: Final = "spiffe://headrace/worker/"
_NAME: Final = re.compile(re.escape(_WORKER) + r"([A-Za-z0-9._-]{1,128})")


def worker_uri(name: str) -> str:
    """The name in a worker's certificate."""
    return f"{_WORKER}{name}"


def worker_of(uri: str) -> str | None:
    """The worker that a certificate names; None if it names none."""
    found = _NAME.fullmatch(uri)
    return found[1] if found else None
