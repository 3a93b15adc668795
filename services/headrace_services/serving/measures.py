"""Metrics of the calls that servers reject."""

from prometheus_client import Counter

from headrace_services.monitoring.registry import REGISTRY

REFUSED = Counter(
    "headrace_calls_refused",
    "Calls and connections that were refused or closed because their callers had too many, by kind.",
    ("what",),
    registry=REGISTRY,
)
