"""Bounds of messages from workers (worker.proto, trial.proto), and from trials to their workers (runtime.proto)."""

from typing import Final

from headrace.bounds import numbers as n
from headrace.bounds.calls import ERROR, METRICS
from headrace.bounds.kinds import Blob, Bound, Entries, Items, Real, Span, Text, Told, Unbounded, Whole
from headrace.bounds.specs import BYTES, NAME, STEPS, TEXT

SEQUENCE: Final = Whole(0, n.EXACT)
TIME: Final = Span(0, n.SECONDS)
TROUBLE: Final = Told(500)
WARNING: Final = Told(2000)
WARNINGS: Final = Items(16, WARNING)
SCHEDULE_NAME: Final = Told(200)
LOG_TAIL: Final = Told(n.LOG_TAIL, end=True)
LOG_CHUNK_BYTES: Final = 64 << 10
"""The size of a part of a log that is read over a session. It delays other messages by a few milliseconds."""
MEMBERS: Final = Items(n.SEATS)
FILES: Final = Items(n.SOURCES)
RANK: Final = Whole(0, n.SLOTS)

SESSIONS: Final[dict[str, dict[str, Bound]]] = {
    "SessionRequest": {},
    "Hello": {
        "worker": NAME,
        "incarnation": NAME,
        "devices": Items(n.DEVICES, remedy="Start several workers, each with a part of the devices."),
        "labels": Entries(256, NAME, Text(1024)),
        "held": Items(n.HELD),
        "version": NAME,
        "log_dir": TEXT,
        "cpus": Whole(0, 1_000_000),
        "host": NAME,
        "home": NAME,
        "home_lock": NAME,
        "leaving": TROUBLE,
        "protocol": Whole(0, n.INT32),
        "oldest_protocol": Whole(0, n.INT32),
    },
    "Store": {"url": TEXT, "id": NAME},
    "Device": {
        "index": Whole(0, 1_000_000),
        "model": NAME,
        "memory_bytes": BYTES,
        "uuid": NAME,
        "defect": TROUBLE,
        "links": Items(n.DEVICES),
    },
    "Bubbles": {
        "job": NAME,
        "stage": Whole(0, 1_000_000),
        "replica": Whole(0, 1_000_000),
        "duty": Real(0, 1),
    },
    "Heartbeat": {
        "sequence": SEQUENCE,
        "telemetry": Items(n.DEVICES),
        "held": Items(n.HELD),
        "trouble": TROUBLE,
        "rejected": TROUBLE,
        "defects": Items(n.DEVICES),
        "leaving": TROUBLE,
        "unacknowledged": Whole(0, n.EXACT),
        "store_id": NAME,
        "reused": TROUBLE,
        "mps": TROUBLE,
    },
    "DeviceDefect": {"index": Whole(0, 1_000_000), "reason": TROUBLE},
    "DeviceTelemetry": {
        "index": Whole(0, 1_000_000),
        "utilization": Real(0, 1),
        "memory_used_bytes": BYTES,
    },
    "Report": {
        "sequence": SEQUENCE,
        "step": STEPS,
        "metrics": METRICS,
        "train_time": TIME,
        "warnings": WARNINGS,
    },
    "Reports": {"reports": MEMBERS},
    "Schedules": {"schedules": Items(16)},
    "Schedule": {
        "name": SCHEDULE_NAME,
        "kind": SCHEDULE_NAME,
        "last_step": STEPS,
        "past_end": Unbounded("an unknown one is told as not known"),
    },
    "AttemptCode": {"files": FILES, "digest": Text(64)},
    "SourceFile": {"path": Text(n.SOURCE_PATH), "digest": Text(64)},
    "JudgeFoldersRequest": {"folders": Items(n.FOLDERS, NAME)},
    "CheckpointRef": {
        "uri": TEXT,
        "step": STEPS,
        "size_bytes": BYTES,
        "manifest_sha256": Text(64),
        "write_time": TIME,
    },
    "Restored": {"sequence": SEQUENCE, "read_time": TIME},
    "Exited": {
        "sequence": SEQUENCE,
        "outcome": Unbounded("an unknown one counts as lost"),
        "error": ERROR,
        "log_tail": LOG_TAIL,
        "exit_code": Unbounded("whatever the system says"),
        "out_of_memory": Whole(0, n.SEATS),
        "device_words": TROUBLE,
        "device_failures": Whole(0, n.EXACT),
        "unsaved": WARNING,
        "stored": Items(64, TEXT),
        "left_behind": WARNING,
        "advice": WARNING,
    },
    "LogChunk": {
        "id": Whole(0, n.EXACT),
        "data": Blob(LOG_CHUNK_BYTES),
        "next_offset": Whole(0, n.EXACT),
    },
    "TurnCost": {
        "members": Whole(0, n.SEATS),
        "turns": Whole(0, n.EXACT),
        "time": TIME,
        "memory_bytes": BYTES,
        "first_step": TIME,
        "later_step": TIME,
    },
    "AttachRequest": {"lease_id": NAME, "rank": RANK, "stack_signal": Whole(0, 64)},
    "RestoredRequest": {"lease_id": NAME, "read_time": TIME},
    "ReportRequest": {
        "lease_id": NAME,
        "sequence": SEQUENCE,
        "step": STEPS,
        "metrics": METRICS,
        "checkpoint_dir": TEXT,
        "train_time": TIME,
        "save_time": TIME,
        "rank": RANK,
        "warnings": WARNINGS,
    },
    "FinishRequest": {
        "lease_id": NAME,
        "error": ERROR,
        "traceback": LOG_TAIL,
        "rank": RANK,
        "exit_code": Unbounded("whatever the system says"),
        "checkpoint_dir": TEXT,
        "step": STEPS,
        "save_time": TIME,
        "unsaved": WARNING,
        "processor": TIME,
        "processor_of_imports": TIME,
    },
    "LoadedRequest": {"lease_id": NAME, "grant_id": NAME, "files": FILES},
    "AttachBundleRequest": {"grant_id": NAME},
    "TurnRequest": {
        "grant_id": NAME,
        "sequence": SEQUENCE,
        "restored": MEMBERS,
        "reports": MEMBERS,
        "finished": MEMBERS,
    },
    "FinishBundleRequest": {"grant_id": NAME, "error": ERROR, "traceback": LOG_TAIL},
}
