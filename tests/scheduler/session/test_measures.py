"""The metrics of a cluster's work and of its state."""

from session_site import TIMING, serving, study, worker
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace.v1 import worker_pb2
from headrace_services.monitoring.registry import REGISTRY
from headrace_services.scheduler.engine.overview import OverviewGauges
from headrace_services.scheduler.monitored import monitored


def value(name: str, **labels: str) -> float:
    """A sample's value; 0 if there is none yet."""
    return REGISTRY.get_sample_value(name, labels) or 0.0


async def test_a_trials_way_is_counted_and_the_cluster_is_taken_stock_of(engine: AsyncEngine) -> None:
    counters = {
        "reports": ("headrace_worker_message_duration_seconds_count", {"message": "report"}),
        "running": ("headrace_trial_moves_total", {"state": "running"}),
        "completed": ("headrace_trials_ended_total", {"reason": "completed"}),
        "finished": ("headrace_attempts_ended_total", {"outcome": "FINISHED"}),
        "begun": ("headrace_grants_total", {"what": "begun"}),
        "ended": ("headrace_grants_total", {"what": "ended"}),
    }

    def counted() -> dict[str, float]:
        return {what: value(name, **labels) for what, (name, labels) in counters.items()}

    gauges = OverviewGauges(engine)
    before = counted()
    async with serving(engine, TIMING) as replica, worker(replica) as scripted:
        with monitored(replica.hub, replica.registry, engine):
            await scripted.hello(slots=3)
            site = await study(engine, max_trials=1)
            replica.hub.kick(site.study_id)
            assign = await scripted.hears("assign")
            assert value("headrace_workers_connected") == 1
            defect = worker_pb2.DeviceDefect(index=2, reason="it fell off the bus")
            await scripted.say(
                heartbeat=worker_pb2.Heartbeat(
                    sequence=1, held=[assign.lease], defects=[defect], unacknowledged=7
                )
            )
            await scripted.hears("ack", lambda ack: ack.heartbeat == 1)
            await scripted.report(assign.lease, 1, 1, 0.5)
            await scripted.hears("decision")
            assert value("headrace_outbox_messages") == 7
            await gauges.refresh()
            slots = {
                state: value("headrace_slots", state=state)
                for state in ("free", "busy", "draining", "quarantined", "away")
            }
            assert slots == {"free": 1, "busy": 1, "draining": 0, "quarantined": 1, "away": 0}
            assert value("headrace_trials", state="running") == 1
            assert value("headrace_studies", state="active") == 1
            exited = worker_pb2.Exited(
                sequence=2, lease=assign.lease, outcome=worker_pb2.EXIT_OUTCOME_FINISHED
            )
            await scripted.say(exited=exited)
            await scripted.hears("ack", lambda ack: 2 in ack.sequences)
        # it is the replica's own metric
        assert REGISTRY.get_sample_value("headrace_workers_connected") is None
    after = counted()
    assert {what: after[what] - before[what] for what in counters} == dict.fromkeys(counters, 1.0)
    await gauges.refresh()
    assert value("headrace_trials", state="running") == 0
    assert value("headrace_slots", state="busy") == 0
