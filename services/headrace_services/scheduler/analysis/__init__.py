"""Work that callers can make large, done off the event loop within limits: previews, Pareto fronts, importances.

`AnalysisPools` runs them in processes that can be killed (`headrace_services.sandbox`).
"""

from headrace_services.scheduler.analysis.pools import SMALL_FRONT, AnalysisPools

__all__ = ["SMALL_FRONT", "AnalysisPools"]
