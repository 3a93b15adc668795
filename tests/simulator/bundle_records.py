"""What a simulation's record shows of bundles."""

from collections import defaultdict

from headrace_services.scheduler.simulator.record import Record


def most_at_once(record: Record) -> dict[str, int]:
    """The largest number of trials that each grant held at once."""
    changes: dict[str, list[tuple[float, int]]] = defaultdict(list)
    for stay in record.stays:
        if stay.end_s > stay.start_s:
            changes[stay.grant] += [(stay.start_s, 1), (stay.end_s, -1)]
    found = {}
    for grant, moments in changes.items():
        held = most = 0
        for _, change in sorted(moments):
            held += change
            most = max(most, held)
        found[grant] = most
    return found
