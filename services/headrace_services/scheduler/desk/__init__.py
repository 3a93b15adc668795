"""The scheduler's desk: what callers can make large, done beside the event loop within limits.

`Desk` asks pools of processes (`headrace_services.apart`) for previews, for the fronts of large studies, and for the
importance of parameters.
"""

from headrace_services.scheduler.desk.desk import SMALL_FRONT, Desk

__all__ = ["SMALL_FRONT", "Desk"]
