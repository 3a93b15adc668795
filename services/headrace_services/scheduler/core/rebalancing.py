"""Spread the last members of a study's bundles over idle slots.

While trials wait, a free slot takes one of them, and full bundles are cheapest. At the end of a study no trial
waits any more. Slots would then stay idle while the members of a bundle share one. So a member that continues past
a rung leaves its bundle if there is room elsewhere, until no process has more members than an even share. With as
many slots as members, each member has its own slot. No more members leave than there is room for elsewhere: a
device with less memory may hold fewer than an even share.

A member that leaves is paused with its checkpoint and placed in the same cycle, on a free slot first, else in the
emptiest bundle. Its results are the same.
"""

from collections.abc import Sequence

from headrace_services.scheduler.core import cluster_view, seats
from headrace_services.scheduler.core.inputs import Input
from headrace_services.scheduler.core.needs import AnyRunnable, Candidates, Deciding, ask
from headrace_services.scheduler.core.records import Lease
from headrace_services.scheduler.core.state import CycleState

SLOTS_AT_ONCE = 64
"""How many idle slots a study looks for before its members leave a bundle."""


def look_ahead(state: CycleState, inputs: Sequence[Input]) -> Deciding[None]:
    """If members of bundles reach a rung and no configuration is left, find out how many slots are idle before
    their reports are judged."""
    spec = state.study.spec
    if spec.fuse is None or state.more or not any(map(_shares, cluster_view.at_a_rung(state, inputs))):
        return
    yield from cluster_view.look_around(state, SLOTS_AT_ONCE)
    state.cluster.nothing_waits = not state.cluster.others_wait and not (yield from ask(AnyRunnable()))
    if not state.cluster.nothing_waits:
        return
    found = yield from ask(Candidates(now_s=state.study.now_s, limit=0, bundles=seats.BUNDLES_AT_ONCE))
    state.add_bundles(found.bundles)
    idle = cluster_view.free_for_study(state)
    most = max(0, spec.max_parallel - found.live) if spec.max_parallel else len(idle)
    state.cluster.idle = tuple(idle[:most])


def leaves(state: CycleState, lease: Lease) -> str | None:
    """Say why a member leaves its bundle at a rung; None if it stays, or does not share its slots."""
    if not state.cluster.nothing_waits or not _shares(lease):
        return None
    assert lease.grant is not None
    own, cluster = state.grants[lease.grant.id], state.cluster
    peers = seats.open_beside(state, own)
    members = own.leases + sum(grant.leases for grant in peers) + cluster.spread
    processes = 1 + len(peers) + len(cluster.idle)
    elsewhere = sum(seats.open_in(state, grant) for grant in peers)
    elsewhere += sum(seats.room_for(state, own, slot) for slot in cluster.idle)
    if own.leases <= -(-members // processes) or cluster.spread >= elsewhere:
        return None
    cluster.spread += 1
    where = "a slot is idle" if cluster.idle else "another has fewer members"
    return f"it leaves its bundle of {own.leases}: {where}, and no trial waits"


def _shares(lease: Lease) -> bool:
    """Whether a trial may share its process with others, on slots that are not ephemeral."""
    return lease.grant is not None and lease.grant.seats > 1 and not lease.owner_stage
