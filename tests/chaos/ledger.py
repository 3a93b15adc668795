"""Compares what the fleet recorded with what the tables contain, without any of the product's own code.

The statements here are independent: if the product's queries were wrong, they would not agree with these.
"""

from collections import Counter, defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import psycopg
from psycopg.rows import namedtuple_row
from sim_fleet import Journal

METRIC = "score"


@dataclass(frozen=True, slots=True, kw_only=True)
class Verdict:
    """What a comparison found; every list should be empty."""

    reports: int
    trials: int
    lost: tuple[str, ...]
    """Reports that were acknowledged, but are not stored or not stored as sent."""
    invented: tuple[str, ...]
    """Stored reports that nobody sent."""
    duplicates: tuple[str, ...]
    """The same step of the same attempt twice."""
    reordered: tuple[str, ...]
    """Attempts whose steps were stored in another order than they were trained."""
    restarted: tuple[str, ...]
    """Attempts that started again, or that were interrupted."""
    contradicted: tuple[str, ...]
    """Reports whose worker was told something other than what is stored."""
    stale: tuple[str, ...]
    """Reports of an older attempt that were stored after a newer one had started to report."""
    numbers: tuple[str, ...]
    """Trial numbers that are missing or duplicate."""

    @property
    def faults(self) -> dict[str, int]:
        """How many faults of each kind, and the first of each kind."""
        return {name: len(getattr(self, name)) for name in _FAULTS}

    @property
    def clean(self) -> bool:
        """Whether nothing is wrong."""
        return not any(self.faults.values())

    def examples(self) -> str:
        """Some of the faults, for people to read."""
        found = [f"{name}: {item}" for name in _FAULTS for item in getattr(self, name)[:3]]
        return "; ".join(found) or "nothing"


_FAULTS = ("lost", "invented", "duplicates", "reordered", "restarted", "contradicted", "stale", "numbers")


@dataclass(frozen=True, slots=True)
class Tables:
    """A study's rows."""

    trials: list[Any]
    reports: list[Any]
    leases: list[Any]
    events: list[Any]


def read(database_url: str, study: str) -> Tables:
    """Read a study's rows. The reports come in the order in which they were committed."""
    with psycopg.connect(database_url, row_factory=namedtuple_row) as conn:  # type: ignore[arg-type]  # its stubs
        (study_id,) = conn.execute("SELECT id FROM study WHERE name = %s", (study,)).fetchone()  # type: ignore[misc]

        def rows(query: str) -> list[Any]:
            return conn.execute(query, (study_id,)).fetchall()

        return Tables(
            trials=rows("SELECT * FROM trial WHERE study_id = %s ORDER BY number"),
            reports=rows("SELECT * FROM report WHERE study_id = %s ORDER BY number, attempt, sequence"),
            leases=rows("SELECT * FROM lease WHERE study_id = %s ORDER BY number, attempt"),
            events=rows(
                "SELECT cursor, number, kind, detail, time FROM event WHERE study_id = %s ORDER BY cursor"
            ),
        )


def compare(tables: Tables, journals: Sequence[Journal], *, interruptions_allowed: bool = False) -> Verdict:
    """Compare the fleet's journals with the tables."""
    lease_ids = {(lease.number, lease.attempt): lease.id for lease in tables.leases}
    stored = {(lease_ids[r.number, r.attempt], r.sequence): r for r in tables.reports}
    lost, sent, contradicted = [], set(), []
    for journal in journals:
        fenced = set(journal.fenced)
        for sequence, said in journal.reports.items():
            sent.add((said.lease_id, sequence))
            row = stored.get((said.lease_id, sequence))
            acked_at = journal.acked.get(sequence)
            over = said.lease_id in fenced
            if journal.stopped_at is not None and acked_at is not None and acked_at < journal.stopped_at:
                over = said.lease_id in journal.fenced_before
            acknowledged = acked_at is not None and not over
            if acknowledged and (
                row is None or row.step != said.step or row.metrics.get(METRIC) != said.score
            ):
                lost.append(f"{said.lease_id} step {said.step}: stored {row}")
            told = journal.decided.get(sequence)
            if row is not None and told is not None and told != row.action:
                contradicted.append(f"{said.lease_id} step {said.step}: told {told}, stored {row.action}")
        contradicted += journal.contradictions
    started = Counter(lease for journal in journals for lease in journal.started)
    restarted = [lease for lease, times in started.items() if times > 1]
    if not interruptions_allowed:
        restarted += [f"trial {t.number}" for t in tables.trials if t.interruptions or t.failures]
    return Verdict(
        reports=len(tables.reports),
        trials=len(tables.trials),
        lost=tuple(lost),
        invented=tuple(f"{lease} report {n}" for lease, n in stored if (lease, n) not in sent),
        duplicates=tuple(_duplicates(tables)),
        reordered=tuple(_reordered(tables)),
        restarted=tuple(restarted),
        contradicted=tuple(contradicted),
        stale=tuple(stale_events(tables)),
        numbers=tuple(_numbers(tables)),
    )


def _duplicates(tables: Tables) -> Iterable[str]:
    seen = Counter((r.number, r.attempt, r.step) for r in tables.reports)
    return (f"trial {n} attempt {e} step {s}: {times}×" for (n, e, s), times in seen.items() if times > 1)


def _reordered(tables: Tables) -> Iterable[str]:
    """Attempts whose steps do not increase by the worker's sequence, by commit time and in the event log."""
    attempts = defaultdict(list)
    for report in tables.reports:
        attempts[report.number, report.attempt].append(report)
    for (number, attempt), reports in attempts.items():
        if any(a.step >= b.step or a.time > b.time for a, b in pairwise(reports)):
            yield f"trial {number} attempt {attempt}: {[r.step for r in reports]}"
    logged = defaultdict(list)
    for event in tables.events:
        if event.kind == "report_recorded":
            logged[event.number, event.detail["attempt"]].append(event.detail["step"])
    for (number, attempt), steps in logged.items():
        if steps != sorted(set(steps)):
            yield f"trial {number} attempt {attempt} in the log: {steps}"


def stale_events(tables: Tables) -> Iterable[str]:
    """Reports and transitions in the log for an attempt after a newer one was granted."""
    newest: dict[int, int] = {}
    for event in tables.events:
        attempt = event.detail.get("attempt")
        if attempt is None or event.number is None:
            continue
        if attempt < newest.get(event.number, 0):
            yield f"event {event.cursor}: trial {event.number} attempt {attempt} after {newest[event.number]}"
        newest[event.number] = max(attempt, newest.get(event.number, 0))


def _numbers(tables: Tables) -> Iterable[str]:
    numbers = [trial.number for trial in tables.trials]
    created = [event.number for event in tables.events if event.kind == "trial_created"]
    if numbers != list(range(len(numbers))):
        yield f"trials are numbered {numbers[:20]}…"
    if sorted(created) != numbers:
        yield "the log created other trials than the table holds"
    cursors = [event.cursor for event in tables.events]
    if cursors != list(range(1, len(cursors) + 1)):
        yield "the log has gaps"


def stale_rows(tables: Tables) -> Iterable[str]:
    """Reports that were stored after the next attempt had been granted."""
    granted = {(lease.number, lease.attempt): lease.grant_time for lease in tables.leases}
    for report in tables.reports:
        after = granted.get((report.number, report.attempt + 1))
        if after is not None and report.time > after:
            yield f"trial {report.number} attempt {report.attempt} step {report.step}: {report.time - after} late"


def stale_checkpoints(tables: Tables) -> Iterable[str]:
    """Attempts that did not start from the newest checkpoint committed before them."""
    newest: dict[int, str] = {}
    starts: dict[tuple[int, int], str] = {}
    for event in tables.events:
        if event.kind == "report_recorded" and "checkpoint" in event.detail:
            newest[event.number] = event.detail["checkpoint"]["uri"]
        elif event.kind == "trial_moved" and event.detail["action"] == "resume":
            starts[event.number, event.detail["attempt"]] = newest.get(event.number, "none")
    for lease in tables.leases:
        wanted = starts.get((lease.number, lease.attempt))
        if wanted is not None and (lease.resume is None or lease.resume["uri"] != wanted):
            yield f"trial {lease.number} attempt {lease.attempt} began from {lease.resume}, not {wanted}"


def lost_steps(tables: Tables) -> dict[tuple[int, int], int]:
    """How many steps each interrupted attempt had reported past the point where the next one started."""
    reached: dict[tuple[int, int], int] = {}
    for report in tables.reports:
        key = (report.number, report.attempt)
        reached[key] = max(reached.get(key, 0), report.step)
    begins = {(x.number, x.attempt): (x.resume or {}).get("step", 0) for x in tables.leases}
    return {
        (number, attempt): reached.get((number, attempt), begins[number, attempt])
        - begins[number, attempt + 1]
        for number, attempt in begins
        if (number, attempt + 1) in begins
    }
