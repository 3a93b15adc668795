"""How long certificates last, unless somebody says otherwise."""

from datetime import timedelta
from typing import Final

AUTHORITY_LIVES: Final = timedelta(days=3650)
SERVER_LIVES: Final = timedelta(days=3650)
WORKER_LIVES: Final = timedelta(days=30)
BACKDATED: Final = timedelta(hours=2)
"""So long before it is signed a certificate is valid, for peers whose clocks are behind. Of a short lifetime it is a
tenth. It opens nothing: whether a certificate was revoked is judged by when it was signed (`authority.issued`)."""
