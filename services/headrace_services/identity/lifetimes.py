"""How long certificates last, unless somebody says otherwise."""

from datetime import timedelta
from typing import Final

AUTHORITY_LIVES: Final = timedelta(days=3650)
SERVER_LIVES: Final = timedelta(days=3650)
WORKER_LIVES: Final = timedelta(days=30)
BACKDATED: Final = timedelta(hours=2)
"""A certificate is valid from so long before it was signed, or from a tenth of its lifetime where that is less: for
machines whose clocks are behind the signer's. An hour is the usual mistake."""
