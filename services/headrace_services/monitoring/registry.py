"""The metrics of this process: one registry, with what every service says about itself."""

import platform
from importlib.metadata import PackageNotFoundError, version

from prometheus_client import CollectorRegistry, GCCollector, Info, ProcessCollector

REGISTRY = CollectorRegistry()
"""Metrics are defined where they are measured, each one once."""

ProcessCollector(registry=REGISTRY)
GCCollector(registry=REGISTRY)

SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""The default bounds of a histogram of seconds."""


def _version() -> str:
    try:
        return version("headrace")
    except PackageNotFoundError:  # run from a source tree
        return ""


Info("headrace_build", "What runs here.", registry=REGISTRY).info(
    {"version": _version(), "python_version": platform.python_version()}
)
