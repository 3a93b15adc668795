"""The scheduler's desk: what callers can make large, done beside the event loop within limits.

`Desk` asks a pool of processes (`headrace_services.apart`) for previews and for the fronts of large studies.
"""

from headrace_services.scheduler.desk.desk import SMALL_FRONT, Desk

__all__ = ["SMALL_FRONT", "Desk"]
