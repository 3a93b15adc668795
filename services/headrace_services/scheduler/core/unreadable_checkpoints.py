"""An attempt could not start because its checkpoint or its store was unavailable. The trial is not charged for that.

    STORE_AWAY             the store's marker is missing, or the store does not answer
                           → the trial waits as long as it takes, and nothing is given up
    UNREADABLE_CHECKPOINT  it exists, but its bytes are not what was stored, or cannot be read
                           → tried `DAMAGED_TRIES` times, then given up
    NO_CHECKPOINT          the store is there, but the checkpoint is not
                           → given up the second time in a row

Between two attempts there is a pause, which doubles each time (`FIRST_PAUSE_S` to `LONGEST_PAUSE_S`). Its end is
stored in the trial's row, by the database's clock, so it survives restarts and holds for other replicas. Meanwhile
the slots serve other trials. After the pause, workers that could not load the checkpoint are tried last.

A checkpoint that is given up is replaced by the previous one in the trial's line that its worker has seen in the
store: an earlier one of the trial since it last copied another trial, then the one that it copied, then that
trial's earlier ones. If there is none, the trial starts over.
"""

from msgspec.structs import replace

from headrace.folders import Place, study_folder
from headrace_services.scheduler.core.inputs import ExitedArrived
from headrace_services.scheduler.core.lifecycle import Action
from headrace_services.scheduler.core.needs import Deciding, EarlierCheckpoint, ask
from headrace_services.scheduler.core.records import Checkpoint, Lease, Study, Trial, Unread
from headrace_services.scheduler.core.state import CycleState

OUTCOMES = ("STORE_AWAY", "UNREADABLE_CHECKPOINT", "NO_CHECKPOINT")
FIRST_PAUSE_S = 1.0
LONGEST_PAUSE_S = 60.0
DAMAGED_TRIES = 7
"""After this many tries, with pauses of over a minute in all, a checkpoint that exists is given up."""
WORKERS_KEPT = 8


def look_ahead(state: CycleState, exits: list[ExitedArrived]) -> Deciding[None]:
    """Learn the previous checkpoint of each one that may be given up."""
    for one in exits:
        trial = state.trials.get(one.number)
        if trial is None or trial.checkpoint is None or one.outcome not in OUTCOMES[1:]:
            continue
        need = EarlierCheckpoint(
            owner=_owner(state.study, trial.checkpoint, trial.number),
            step=trial.checkpoint.step,
            stored=frozenset(one.stored),
        )
        state.earlier_checkpoints[trial.number] = yield from ask(need)


def handle(state: CycleState, trial: Trial, lease: Lease, message: ExitedArrived) -> None:
    """Have the trial retried after a pause, from its checkpoint or from an earlier one."""
    slots = state.slots.get(lease.id, ())
    failed = (slots[0].worker_name,) if slots else ()
    before = trial.unread or Unread()
    others = tuple(name for name in before.workers if name not in failed)
    unread = replace(before, tries=before.tries + 1, workers=(*failed, *others)[:WORKERS_KEPT])
    is_its_own = lease.resume is not None and trial.checkpoint == lease.resume
    match message.outcome:
        case "UNREADABLE_CHECKPOINT" if is_its_own:
            unread = replace(unread, damaged=unread.damaged + 1)
            if unread.damaged >= DAMAGED_TRIES:
                _give_up(
                    state, trial, before, f"cannot be read, {unread.damaged} times in a row", message.error
                )
                return
        case "NO_CHECKPOINT" if is_its_own:
            if before.missing or before.earlier:
                _give_up(state, trial, before, "no longer exists", message.error)
                return
            unread = replace(unread, missing=True)
        case _:
            pass
    pause_s = min(LONGEST_PAUSE_S, FIRST_PAUSE_S * 2 ** min(unread.tries - 1, 10))
    state.update(trial.number, unread=unread, not_before_s=state.study.now_s + pause_s)
    why = message.error or "its checkpoint cannot be loaded"
    _interrupt(state, trial, f"{why}; it is tried again in {pause_s:g} s")


def _give_up(state: CycleState, trial: Trial, unread: Unread, how: str, why: str) -> None:
    assert trial.checkpoint is not None, "the attempt was to continue from it"
    what = f"its checkpoint of step {trial.checkpoint.step} {how}"
    earlier = state.earlier_checkpoints.get(trial.number)
    if earlier is not None:
        found = Unread(earlier=unread.earlier + 1)
        state.update(trial.number, checkpoint=earlier, unread=found, not_before_s=None)
        _interrupt(state, trial, f"{what}, so it resumes from the one of step {earlier.step}: {why}")
        return
    state.update(
        trial.number, checkpoint=None, unread=None, not_before_s=None, losses_in_row=0, kills_in_row=0
    )
    _interrupt(state, trial, f"{what}, so it starts over: {why}")


def _interrupt(state: CycleState, trial: Trial, why: str) -> None:
    state.move(trial.number, Action.INTERRUPT, interruptions=trial.interruptions + 1, detail=why)


def _owner(study: Study, checkpoint: Checkpoint, number: int) -> int:
    """The trial that saved a checkpoint, which is another one if its state was copied."""
    place = Place.of(checkpoint.uri)
    if place is None or place.study != f"studies/{study_folder(study.name, study.uid)}":
        return number
    return int(place.trial.rpartition("/")[2])
