"""The name of a worker in its certificate: `spiffe://headrace/worker/NAME`, in the subject's alternative names."""

import re
from typing import Final

_WORKER: Final = "spiffe://headrace/worker/"
_NAME: Final = re.compile(re.escape(_WORKER) + r"([A-Za-z0-9._-]{1,128})")


def worker_uri(name: str) -> str:
    """What the certificate of a worker says."""
    return f"{_WORKER}{name}"


def worker_of(uri: str) -> str | None:
    """The worker that a certificate names; None where it names none."""
    found = _NAME.fullmatch(uri)
    return found[1] if found else None
