"""How long certificates last, unless somebody says otherwise."""

from datetime import timedelta
from typing import Final

AUTHORITY_LIVES: Final = timedelta(days=3650)
SERVER_LIVES: Final = timedelta(days=3650)
WORKER_LIVES: Final = timedelta(days=30)
BACKDATED: Final = timedelta(minutes=1)
"""Clocks of two replicas may differ by so much. Of a shorter lifetime it is a tenth."""
