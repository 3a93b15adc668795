"""How long certificates are valid by default."""

from datetime import timedelta
from typing import Final

AUTHORITY_LIVES: Final = timedelta(days=3650)
SERVER_LIVES: Final = timedelta(days=3650)
WORKER_LIVES: Final = timedelta(days=30)
BACKDATED: Final = timedelta(hours=2)
"""A certificate is valid from this long before it was signed, or from a tenth of its lifetime if that is less.
That is for machines whose clocks are behind the signer's; an hour is the usual mistake."""
