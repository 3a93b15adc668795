"""The name of a worker in its certificate: `spiffe://headrace/worker/NAME`, in the subject's alternative names.

Beside it stands one host name, the same for all workers, by which what runs beside a worker shows the certificate as a
server: bubble agents, to each other. No host has this name, so a worker can show itself as no scheduler.
"""

import re
from typing import Final

WORKERS_HOST: Final = "worker.headrace.invalid"
_WORKER: Final = "spiffe://headrace/worker/"
_NAME: Final = re.compile(re.escape(_WORKER) + r"([A-Za-z0-9._-]{1,128})")


def worker_uri(name: str) -> str:
    """What the certificate of a worker says."""
    return f"{_WORKER}{name}"


def worker_of(uri: str) -> str | None:
    """The worker that a certificate names; None where it names none."""
    found = _NAME.fullmatch(uri)
    return found[1] if found else None
