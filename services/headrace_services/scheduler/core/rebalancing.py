"""The last members of a study's bundles spread over the slots that are idle.

While trials wait, a free slot takes one of them, and full bundles cost least. At the end of a study nothing waits any
more. Then slots would stay idle beside a bundle whose members share one. So a member that goes on past a rung leaves
its bundle where others have room for it, until no process has more members than an even share. With as many slots as
members each has a slot to itself. No more members leave than there is room for elsewhere: a device of less memory may
hold fewer than an even share.

A member that leaves is paused with its checkpoint and placed in the same step, on a free slot first, else on the
emptiest seat. What it computes stays the same.
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
    """Where members of bundles come to a rung and no configuration is left: see, before their reports are judged, how
    many slots are idle."""
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
    """Say why a member leaves its bundle at a rung; None where it stays, or has its slots to itself."""
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
    """Whether a trial may share its process with others, on slots that are the study's own."""
    return lease.grant is not None and lease.grant.seats > 1 and not lease.owner_stage
