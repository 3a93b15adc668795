"""What a daemon exposes to Prometheus, read when a scrape asks for it.

Schedulers expose what matters about all their workers. This is for machines that are monitored one by one.
"""

from collections.abc import Callable, Iterator, Mapping

from prometheus_client import CollectorRegistry, ProcessCollector
from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector

_HELP = {
    "connected": "Whether a session with a scheduler is open.",
    "slots": "Slots that this worker offers.",
    "slots_failed": "Slots whose device failed.",
    "trials": "Trials that run here, or are being started or ended.",
    "outbox_messages": "Messages that no scheduler has acknowledged yet.",
    "logs_pending": "Logs of attempts that are over, and not in the store yet.",
    "mps_clients": "Trials that share a GPU through MPS.",
    "mps_faults": "Faults of an MPS server since the start.",
    "mps_restarts": "Restarts of an MPS server because a client could not be taken off its GPU.",
    "in_trouble": "Whether the worker is blocked: by a full disk, or a store that does not answer.",
}
Figures = Callable[[], Mapping[str, float]]
"""The current values by the keys of the table above; called from another thread."""


class _DaemonCollector(Collector):
    def __init__(self, figures: Figures) -> None:
        self._figures = figures

    def collect(self) -> Iterator[GaugeMetricFamily]:
        for name, value in self._figures().items():
            yield GaugeMetricFamily(f"headrace_worker_{name}", _HELP[name], value)


def registry_of(figures: Figures) -> CollectorRegistry:
    """The metrics of one daemon."""
    registry = CollectorRegistry()
    ProcessCollector(registry=registry)
    registry.register(_DaemonCollector(figures))
    return registry
