"""Which trials wait for slots, and which slots are free, as a scheduler reports them.

What counts as waiting: trials of active studies that could run now, and those that a study has yet to propose, as
far as `parallel` and the project's quota of slots let them run. Studies without a program of their own (ask/tell)
and those that wait for another study count for nothing. Trials of other projects than the token's are not seen.
"""

from collections import Counter
from collections.abc import Iterator, Sequence
from datetime import timedelta
from math import ceil

from headrace.client import Client, joining, study_flows
from headrace.client.machines import Worker
from headrace.client.model import StudyInfo, TrialInfo, TrialState
from headrace.client.projects import ProjectInfo
from headrace.errors import InvalidFieldError
from headrace.grants import WHOLE
from headrace.launch.decision import FreeSlots, Kind, Need
from headrace.launch.loop import Cluster

CPU = "cpu"
"""How workers name the device of a CPU slot."""
BY_A_USER = "a user to resume it"
PAGE = 500


class ByClient:
    """The loop's view of Headrace, through a client with an admin's token."""

    def __init__(self, client: Client) -> None:
        self._client = client

    def look(self, kind: Kind, most: int) -> Cluster:
        """What waits and what is free."""
        client = self._client
        workers = [worker for worker in client.workers() if worker.connected]
        waiting = {share.study for share in client.shares() if share.waiting}
        studies = [study for study in client.studies("state:active") if study.name in waiting]
        projects = {project.name: project for project in client.projects()} if studies else {}
        rooms = {name: room_of(project) for name, project in projects.items()}
        needs: list[Need] = []
        for study in studies:
            room = rooms.get(study.project)
            found = self._needs(study, room, enough=WHOLE * kind.slots * most)
            needs += found
            if room is not None:  # the studies of a project share what its quota leaves
                rooms[study.project] = room - sum(need.count * need.slots * need.milli for need in found)
        return Cluster(
            needs=needs,
            free=[slots for worker in workers for slots in free_of(worker)],
            connected=frozenset(worker.name for worker in workers),
        )

    def create_token(self, worker: str, lifetime: timedelta) -> tuple[str, str]:
        """A join token for one worker and one use."""
        token, secret = self._client.transport.run(
            joining.create_token(worker=worker, uses=1, lifetime=lifetime)
        )
        return token.id, secret

    def revoke_token(self, token_id: str) -> None:
        """Revokes a token."""
        self._client.transport.run(joining.revoke_token(token_id))

    def _needs(self, study: StudyInfo, room: int | None, enough: int) -> list[Need]:
        most = parallel_left(study)
        if most <= 0:
            return []
        trials: list[TrialInfo] = []
        for trial in self._runnable(study):
            trials.append(trial)
            if len(trials) >= most or len(trials) * WHOLE >= enough * seats_of(study):
                break
        return needs_of(study, trials, most=most, room_milli=room)

    def _runnable(self, study: StudyInfo) -> Iterator[TrialInfo]:
        token = ""
        while True:
            found, token = self._client.transport.run(
                study_flows.trials_page(
                    self._client.study(study.name),
                    study.spec.space,
                    size=PAGE,
                    token=token,
                    filter="state:pending,paused",
                )
            )
            yield from filter(is_runnable, found)
            if not token:
                return


def room_of(project: ProjectInfo) -> int | None:
    """What a project's quota leaves, in thousandths of slots; None without a quota."""
    return None if project.slots is None else round(WHOLE * (project.slots - project.slots_held))


def is_runnable(trial: TrialInfo) -> bool:
    """Whether a trial waits only for slots, or for a turn."""
    off = trial.state in (TrialState.PENDING, TrialState.PAUSED)
    return off and trial.milestone is not None and trial.waits_for != BY_A_USER


def parallel_left(study: StudyInfo) -> int:
    """How many more trials of a study may run at once."""
    spec, counts = study.spec, study.counts
    if spec.template is None or (spec.after is not None and study.waits_for == f"study {spec.after}"):
        return 0
    runs = counts.running + counts.resumed
    unended = max(0, spec.max_trials + (spec.baseline is not None) - counts.terminated)
    return (min(spec.max_parallel, unended) if spec.max_parallel else unended) - runs


def needs_of(
    study: StudyInfo, trials: Sequence[TrialInfo], *, most: int, room_milli: int | None = None
) -> list[Need]:
    """What a study needs: its runnable trials, then those that it has yet to propose, of the smallest size; at
    most `most` trials. `room_milli` is what its project's quota leaves, in thousandths of slots.

    With `fuse`, as many trials as may share a process count as one. If the scheduler lets fewer share one, the others
    still wait in the next turn.
    """
    spec, counts = study.spec, study.counts
    sizes = [_size(study, trial) for trial in trials]
    unproposed = max(0, spec.max_trials + (spec.baseline is not None) - counts.total)
    smallest = spec.resources.each[0]
    sizes += [(smallest.slots, smallest.milli, smallest.on_gpu)] * min(unproposed, most)
    found: Counter[tuple[int, int, bool]] = Counter()
    left = room_milli
    for size in sizes[:most]:
        if left is not None:
            left -= size[0] * size[1]
            if left < 0:
                break
        found[size] += 1
    return [
        Need(
            count=ceil(count / seats_of(study)),
            slots=slots,
            milli=milli,
            on_gpu=on_gpu,
            labels=spec.resources.labels,
            study=study.name,
        )
        for (slots, milli, on_gpu), count in found.items()
    ]


def seats_of(study: StudyInfo) -> int:
    """How many trials of a study may share a process."""
    return study.spec.fuse.most if study.spec.fuse is not None else 1


def _size(study: StudyInfo, trial: TrialInfo) -> tuple[int, int, bool]:
    """What a trial takes now: slots, thousandths of each, and whether they are GPUs."""
    spec = study.spec
    try:
        own = spec.resources.of(trial.params)
    except InvalidFieldError:
        own = spec.resources.each[0]
    row = spec.elastic.row_at(trial.step) if spec.elastic is not None else None
    return (*((own.slots, own.milli) if row is None else row.part), own.on_gpu)


def free_of(worker: Worker) -> list[FreeSlots]:
    """A worker's free slots: those of its GPUs, and CPU slots; empty if it gets no trials."""
    if worker.draining or worker.cordoned or worker.suspended:
        return []
    closed = {cordon.device for cordon in worker.cordons}
    free: dict[bool, list[int]] = {}
    for slot in worker.slots:
        if slot.defect or slot.index in closed:
            continue
        held = slot.elsewhere + sum(each[0].share for each in slot.processes)
        if left := max(0, round(WHOLE * (1 - held))):
            free.setdefault(slot.device != CPU, []).append(left)
    return [
        FreeSlots(free=tuple(slots), on_gpu=on_gpu, labels=worker.labels) for on_gpu, slots in free.items()
    ]
