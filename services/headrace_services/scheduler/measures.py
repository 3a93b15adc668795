"""The measurements that a scheduler makes of its own work.

Everything here is a counter or a distribution: code adds to it, in a microsecond or two. The present state of a
replica (queues, streams, connections) is read when it is requested (`monitored`). The state of the cluster is read
from the database from time to time (`engine.overview`), never by a scrape.
"""

from collections.abc import Iterable

from prometheus_client import Counter, Gauge, Histogram

from headrace.errors import HeadraceError
from headrace_services.monitoring.registry import REGISTRY, SECONDS
from headrace_services.scheduler.core.changes import Changes
from headrace_services.scheduler.core.inputs import Accepted, ExitedArrived, Input, LeaseExpired, Outcome

ANSWERS = Histogram(
    "headrace_worker_message_duration_seconds",
    "From the arrival of a worker's message to its answer; of a report, that is its decision.",
    ("message",),
    buckets=SECONDS,
    registry=REGISTRY,
)
CYCLES = Histogram(
    "headrace_cycle_duration_seconds",
    "Scheduling cycles, with their commit.",
    ("outcome",),
    buckets=SECONDS,
    registry=REGISTRY,
)
CYCLE_INPUTS = Counter("headrace_cycle_inputs", "Inputs that cycles processed.", registry=REGISTRY)
WAKE_UPS = Counter(
    "headrace_placement_wakeups",
    "Cycles started to look for a free slot: another study left one, slots were left over, or free ones were locked "
    "by cycles of other studies before.",
    ("why",),
    registry=REGISTRY,
)
GRANTS = Counter(
    "headrace_grants", "Grants of slots that started, and that ended.", ("what",), registry=REGISTRY
)
TRIAL_MOVES = Counter(
    "headrace_trial_moves", "Transitions of trials into a state.", ("state",), registry=REGISTRY
)
TRIALS_ENDED = Counter("headrace_trials_ended", "Trials that are over.", ("reason",), registry=REGISTRY)
ATTEMPTS_ENDED = Counter(
    "headrace_attempts_ended",
    "Attempts whose end a worker reported.",
    ("outcome",),
    registry=REGISTRY,
)
LEASES_EXPIRED = Counter(
    "headrace_leases_expired", "Leases that ended because their holder was silent.", registry=REGISTRY
)
DATABASE_ERRORS = Counter(
    "headrace_database_errors",
    "Transactions that failed: the database was unavailable, lacked resources, or another transaction came first.",
    ("kind",),
    registry=REGISTRY,
)
DATABASE_RETRIES = Counter(
    "headrace_database_retries", "Cycles that were retried.", ("kind",), registry=REGISTRY
)
PROPOSALS = Histogram(
    "headrace_proposal_duration_seconds",
    "Attempts at a proposal of a sampler that fits a model.",
    ("sampler", "outcome"),
    buckets=(*SECONDS, 30.0, 60.0, 120.0),
    registry=REGISTRY,
)
LOOP_LAG = Histogram(
    "headrace_event_loop_lag_seconds",
    "How late the event loop runs tasks that are due, without waits for a core.",
    buckets=SECONDS[:-3],
    registry=REGISTRY,
)
SLOTS = Gauge("headrace_slots", "Slots of the cluster.", ("state",), registry=REGISTRY)
STUDIES = Gauge("headrace_studies", "Studies that have not ended.", ("state",), registry=REGISTRY)
TRIALS = Gauge(
    "headrace_trials",
    "Trials on workers, and trials that wait for a slot (at most 10,000 of these).",
    ("state",),
    registry=REGISTRY,
)
SAMPLED = Gauge(
    "headrace_overview_timestamp_seconds",
    "When the slots, studies and trials of the cluster were last counted.",
    registry=REGISTRY,
)
SCHEMA = Gauge(
    "headrace_schema_revision",
    "The newest migration: of the database, and that this program knows.",
    ("of",),
    registry=REGISTRY,
)

for kind in ("away", "strained", "conflict"):  # shown from the start, so that their first increase is visible
    DATABASE_ERRORS.labels(kind)
    DATABASE_RETRIES.labels(kind)
for outcome in ("FINISHED", "RELEASED", "FAILED", "LOST", "NO_CHECKPOINT", "UNPREPARED", "UNREACHED"):
    ATTEMPTS_ENDED.labels(outcome)


def count_cycle(
    changes: Changes, inputs: Iterable[Input], outcomes: Iterable[Outcome | HeadraceError]
) -> None:
    """Count the effects of a committed cycle."""
    GRANTS.labels("begun").inc(len(changes.grants))
    GRANTS.labels("ended").inc(len(changes.ended_grants))
    for change in changes.trials:
        after = change.after
        if change.before.state is not after.state:
            TRIAL_MOVES.labels(after.state.value.lower()).inc()
            if after.reason is not None:
                TRIALS_ENDED.labels(after.reason.value.lower()).inc()
    for one, became in zip(inputs, outcomes, strict=True):
        CYCLE_INPUTS.inc()
        if isinstance(became, Accepted):
            if isinstance(one, ExitedArrived):
                ATTEMPTS_ENDED.labels(one.outcome).inc()
            elif isinstance(one, LeaseExpired):
                LEASES_EXPIRED.inc()
