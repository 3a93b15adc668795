"""The present state of a replica: its queues, streams and connections, read when a scrape asks for them.

A scrape runs in its own thread. It only reads sizes, which other threads cannot leave half changed.
"""

from collections.abc import Iterator
from contextlib import contextmanager

from prometheus_client.core import GaugeMetricFamily
from prometheus_client.registry import Collector
from sqlalchemy.ext.asyncio import AsyncEngine
from sqlalchemy.pool import QueuePool

from headrace_services.monitoring.registry import REGISTRY
from headrace_services.scheduler.engine.hub import Hub
from headrace_services.scheduler.session.registry import Registry


class ReplicaCollector(Collector):
    """Reads the state of a replica's parts."""

    def __init__(self, hub: Hub, registry: Registry, engine: AsyncEngine) -> None:
        self._hub = hub
        self._registry = registry
        self._engine = engine

    def collect(self) -> Iterator[GaugeMetricFamily]:
        """The present numbers."""
        connected = self._registry.connected
        yield GaugeMetricFamily(
            "headrace_workers_connected", "Workers whose stream is open at this replica.", len(connected)
        )
        queues = GaugeMetricFamily(
            "headrace_queue_length", "Entries that wait in this replica's queues.", labels=["queue"]
        )
        queues.add_metric(["cycle inputs"], self._hub.queued)
        queues.add_metric(["to workers"], sum(session.to_say for session in connected))
        yield queues
        yield GaugeMetricFamily(
            "headrace_outbox_messages",
            "Messages that the connected workers keep until a scheduler acknowledges them.",
            sum(session.unacknowledged for session in connected),
        )
        yield GaugeMetricFamily(
            "headrace_studies_at_work", "Studies that this replica runs cycles of.", self._hub.studies
        )
        pool = self._engine.pool
        if isinstance(pool, QueuePool):
            connections = GaugeMetricFamily(
                "db_client_connection_count",
                "Connections to Postgres.",
                labels=["db_client_connection_state"],
            )
            connections.add_metric(["used"], pool.checkedout())
            connections.add_metric(["idle"], pool.checkedin())
            yield connections
            yield GaugeMetricFamily(
                "db_client_connection_max", "The most connections that there may be.", pool.size()
            )


@contextmanager
def monitored(hub: Hub, registry: Registry, engine: AsyncEngine) -> Iterator[None]:
    """Include a replica's parts in the metrics within the block."""
    collector = ReplicaCollector(hub, registry, engine)
    REGISTRY.register(collector)
    try:
        yield
    finally:
        REGISTRY.unregister(collector)
