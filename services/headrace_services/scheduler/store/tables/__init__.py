"""The tables. Postgres enforces every rule that a single row can break; each constraint has its rule in English.

A milestone is the database's own record of what a trial should do: a trial is runnable iff it is PENDING or
PAUSED, has a milestone, and no user holds it. The migrations create all this; a test compares the two.

There is a module for each theme. Other code imports the tables from here.
"""

from headrace_services.scheduler.store.tables.base import metadata
from headrace_services.scheduler.store.tables.grants import (
    bundle_profile,
    grant_part,
    lease,
    leave,
    slot_grant,
)
from headrace_services.scheduler.store.tables.identity import join_token, joined_worker, token
from headrace_services.scheduler.store.tables.machines import (
    checkpoint_store,
    cordon,
    log_read,
    slot,
    slot_load,
    worker,
)
from headrace_services.scheduler.store.tables.shipped import code, code_chunk, code_project
from headrace_services.scheduler.store.tables.studies import project, study
from headrace_services.scheduler.store.tables.trials import event, exploit, report, rung_result, trial
from headrace_services.scheduler.store.tables.upkeep import lineage, request, schema_version, tombstone

__all__ = [
    "bundle_profile",
    "checkpoint_store",
    "code",
    "code_chunk",
    "code_project",
    "cordon",
    "event",
    "exploit",
    "grant_part",
    "join_token",
    "joined_worker",
    "lease",
    "leave",
    "lineage",
    "log_read",
    "metadata",
    "project",
    "report",
    "request",
    "rung_result",
    "schema_version",
    "slot",
    "slot_grant",
    "slot_load",
    "study",
    "token",
    "tombstone",
    "trial",
    "worker",
]
