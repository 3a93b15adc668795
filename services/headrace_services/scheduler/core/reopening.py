"""Reopening trials that are over: `headrace retry` and `headrace extend`.

The rows keep everything of a finished trial: results at rungs, checkpoints, reports. A reopened trial continues
from its last checkpoint, or starts over if it has none, and its failures are counted from 0 again. It does not
repeat the rungs where it was recorded.

A study that has ended becomes active again, if its project's quota of studies has room for it. Its end cut off the
trials that waited for a promotion and those that ran. They continue too, each where it was. Trials that the policy
had stopped stay stopped.

A larger full budget adds rungs after the old one and moves none. A trial that had the old budget was recorded
there, and the policy is asked about it as at any rung: it continues, waits for a promotion, or stays as it ended.
A trial that trains at that moment was given the old budget. It pauses there, and its next attempt gets the new one
(`core.preemption`). A trial that completed an earlier budget and failed on its way to the next one continues on
its way, as with a retry.

The earlier result of a reopened trial still counts, whatever happens to it now (`core.earlier_ends`).

The policy has recorded that these trials are over, which cannot be undone. So the rows are folded into a new
policy, without ending the reopened trials there. The study's revision counts such changes, and other replicas drop
their folds.
"""

from collections.abc import Sequence
from typing import assert_never

from msgspec.structs import replace

from headrace.bounds import numbers
from headrace.errors import NEW_STUDY, HeadraceError, InvalidFieldError, TrialNotFoundError, Violation
from headrace.spec import BestOfSampler, StudySpec
from headrace.spec.extended import too_many_rungs
from headrace.spec.surrogate import GATE
from headrace_services.scheduler.core import code_changes, events, reports, until
from headrace_services.scheduler.core.fold import Fold
from headrace_services.scheduler.core.inputs import ExtendStudy, Outcome, Reopened, Reopening, RetryTrials
from headrace_services.scheduler.core.lifecycle import Reason, State, StudyState
from headrace_services.scheduler.core.needs import Deciding, FoldIn, OverTrials, RoomForStudies, ask
from headrace_services.scheduler.core.policies import Action as Ruling
from headrace_services.scheduler.core.records import Over, Trial
from headrace_services.scheduler.core.state import CycleState

_AGAIN = frozenset({Reason.FAILED, Reason.CANCELLED})
"""The ways of ending after which a user may name a trial to have it retried."""


def apply(state: CycleState, command: Reopening) -> Deciding[Outcome]:
    """Carry a command out. Raises a HeadraceError if that is not possible; nothing has changed then."""
    match command:
        case RetryTrials():
            return (yield from _retry(state, command.numbers))
        case ExtendStudy():
            return (yield from _extend(state, command))
        case _:
            assert_never(command)


def _retry(state: CycleState, named: frozenset[int] | None) -> Deciding[Outcome]:
    _require_no_follower(state, "trials", "")
    until.require_unmet(state, "trials")
    over = yield from _over(state, _AGAIN if named is not None else frozenset({Reason.FAILED}))
    cut_off = {one.trial.number for one in over if one.cut_off}
    for number in sorted((named or frozenset()) - cut_off):
        _require_again(state, number)
    chosen = [
        one
        for one in over
        if (one.trial.reason is Reason.FAILED if named is None else one.trial.number in named)
    ]
    known = set(_numbers(chosen))
    others = [one for one in over if one.cut_off and one.trial.number not in known]
    if not (chosen or others) and state.study.state is not StudyState.FAILED:
        name = state.study.name
        remedy = f"`headrace extend {name}` gives the study more work, and it continues."
        raise _refused("trials", "", f"cannot be tried again: none of study '{name}' has failed", remedy)
    _require_company(state, chosen)
    yield from _require_room(state)
    fold = Fold.empty(state.study.spec, state.fold.sampler, points=state.fold.points)
    tried = f", {len(chosen)} trial{'s' * (len(chosen) != 1)} tried again" if chosen or not others else ""
    yield from _begin_again(state, f"continued by a user{tried}", fold, [*chosen, *others])
    state.study = replace(state.study, early_failures=0)
    state.stand(early={}, avoided={})
    code_changes.reopened(state)
    for one in chosen:
        _reopen(state, one, "tried again by a user")
    for one in others:
        _reopen(state, one, "the study continues")
    return Reopened(numbers=_numbers(chosen), others=len(others))


def _extend(state: CycleState, command: ExtendStudy) -> Deciding[Outcome]:
    before = state.study.spec
    after = before.extended_to(
        trials=before.max_trials + command.trials, steps=command.steps or before.max_steps
    )
    _require_extensible(state, command, after)
    ends = frozenset({Reason.COMPLETED, Reason.FAILED}) if command.steps else frozenset[Reason]()
    over = yield from _over(state, ends)
    full = [one for one in over if _had_all(state, one.trial)]
    again = [one for one in over if _failed_since(state, one.trial)]
    known = {*_numbers(full), *_numbers(again)}
    others = [one for one in over if one.cut_off and one.trial.number not in known]
    if command.steps and state.study.state.ended and not (known or others or state.more):
        remedy = f"Try more configurations: `headrace extend {state.study.name} --trials N`."
        if not _takes_more_trials(state):
            remedy = "Create a study with this budget."
        said = "lets no trial continue: each exited early, was stopped or failed before its full budget"
        raise _refused("steps", command.steps, said, remedy)
    yield from _require_room(state)
    fold = Fold.empty(
        after, state.fold.sampler, points=state.fold.points
    )  # a user's own policy may refuse; nothing has changed yet
    state.extend(after)
    yield from _begin_again(state, "extended by a user", fold, [*full, *again, *others])
    for one in others:
        _reopen(state, one, "the study continues")
    for one in again:
        _reopen(state, one, "it completed an earlier budget, and is retried")
    go_on = [one for one in full if not _stays(state, one.trial)]
    for one in go_on:
        why = f"the full budget is {after.max_steps} steps now"
        _reopen(state, one, why)
    for one in go_on:
        if not one.trial.baseline:
            _judge(state, one.trial)
    return Reopened(numbers=tuple(sorted(_numbers([*go_on, *again]))), others=len(others))


def _numbers(over: Sequence[Over]) -> tuple[int, ...]:
    return tuple(one.trial.number for one in over)


# --- what cannot be done ------------------------------------------------------------------------------


def _refused(field: str, value: object, message: str, remedy: str = "") -> InvalidFieldError:
    return InvalidFieldError([Violation(field=field, value=str(value), message=message, remedy=remedy)])


def _require_again(state: CycleState, number: int) -> None:
    trial = state.trials.get(number)
    name = state.study.name
    if trial is None:
        raise TrialNotFoundError(f"study '{name}' has no trial {number}")
    if trial.state is State.TERMINATED and trial.reason in _AGAIN:
        return
    now = (trial.reason or trial.state).lower().replace("_", " ")
    remedy = f"`headrace trials {name} --state failed` lists those that failed."
    raise _refused("trials", number, f"names one that has not failed: it is {now}", remedy)


def _require_no_follower(state: CycleState, field: str, value: object) -> None:
    """Refuse to continue a study whose end was reported to its transfer study, which has started or ended because
    of it."""
    transfer = state.study.spec.transfer
    if transfer is None or not state.study.state.ended:
        return
    if state.study.state is StudyState.COMPLETED:
        follower = transfer.study_name(state.study.name)
        remedy = (
            f"Extend '{follower}' in steps (`headrace extend {follower} --steps N`), or create a "
            "study of another name."
        )
        raise _refused(field, value, "is too late: the study that trains its best has started", remedy)
    remedy = "Create both studies again, under another name."
    raise _refused(field, value, "is too late: the study that was to train its best has ended too", remedy)


def _require_company(state: CycleState, chosen: Sequence[Over]) -> None:
    """Refuse to retry a member of a population that the other members have moved past."""
    policy = state.fold.policy
    for trial in (one.trial for one in chosen if not one.trial.baseline):
        ladder = policy.ladder(trial.bracket)
        if trial.rungs < len(ladder) and policy.left(trial.rungs):
            step = ladder[trial.rungs]
            said = (
                f"names a member that the others have overtaken: they are past its next rung, at step {step}"
            )
            remedy = "Create a study: what it would copy there may be gone."
            raise _refused("trials", trial.number, said, remedy)


def _require_room(state: CycleState) -> Deciding[None]:
    """Require room in the quota of studies: a study that has ended counts again."""
    if state.study.state.ended and (quota := (yield from ask(RoomForStudies()))) is not None:
        quota.require(1)


def remedy_of_ended(state: CycleState, *, adds: bool) -> str | None:
    """What to do with an ended study that is asked for more; None if the usual remedy applies. It must not name an
    extension that would be refused, because that refusal may name this remedy again.

    `adds`: a user asks to try given configurations, for which the study must be active.
    """
    study = state.study
    if study.state is StudyState.FAILED:
        return f"`headrace retry {study.name}` resumes it once its program is fixed. Or {NEW_STUDY}"
    if not adds or _takes_more_trials(state):
        return None
    return f"{NEW_STUDY[0].upper()}{NEW_STUDY[1:]}"


def _takes_more_trials(state: CycleState) -> bool:
    """Whether an extension by trials would be accepted."""
    try:
        _require_extensible(state, ExtendStudy(trials=1, steps=None), state.study.spec)
    except HeadraceError:
        return False
    return True


def _require_extensible(state: CycleState, command: ExtendStudy, after: StudySpec) -> None:
    spec, name = state.study.spec, state.study.name
    field, value = ("steps", command.steps) if command.steps else ("trials", command.trials)
    if spec.template is not None and spec.template.callable == GATE:
        raise _refused(
            field, value, "cannot extend a check of a surrogate", "Extend the study that it checks."
        )
    if spec.surrogate is not None and spec.surrogate.scale_by is not None:
        raise _refused(field, value, "cannot extend a pilot", "Extend the study that it is the pilot of.")
    _require_no_follower(state, field, value)
    if state.study.state is StudyState.FAILED:
        remedy = f"Fix the trial's program, then resume its trials: `headrace retry {name}`."
        raise _refused(field, value, "cannot extend a study that failed", remedy)
    until.require_unmet(state, field)
    if command.steps:
        _require_steps(state, command.steps, after)
    else:
        _require_trials(state, command.trials)


def _require_steps(state: CycleState, steps: int, after: StudySpec) -> None:
    spec = state.study.spec
    if steps <= spec.max_steps:
        said = f"is not more than the full budget, which is {spec.max_steps}"
        raise _refused("steps", steps, said, "Give the new full budget, not the increase.")
    if steps > numbers.STEPS:
        remedy = f"Give at most {numbers.STEPS}."
        raise _refused(
            "steps", steps, f"is more than the {numbers.STEPS} steps that a trial may have", remedy
        )
    if len(after.budgets) > numbers.EXTENSIONS:
        said = f"would be one budget more than the {numbers.EXTENSIONS} that a study may have had"
        raise _refused("steps", steps, said, "Create a study with this budget.")
    if state.study.standing.returns:
        said = "lets no trial continue: their function returns its result and reports nothing on its way, so it is over"
        remedy = (
            f"Try more configurations: `headrace extend {state.study.name} --trials N`. For {steps} steps create a "
            f"study, which may begin from these results: `warm_start: {{study: {state.study.name}}}`."
        )
        raise _refused("steps", steps, said, remedy)
    rungs = after.count_rungs()
    if too_many_rungs(spec.policy, rungs):
        remedy = "Choose fewer steps, or create a study with a larger interval."
        raise _refused("steps", steps, f"makes {rungs} rungs, which are too many", remedy)


def _require_trials(state: CycleState, trials: int) -> None:
    spec = state.study.spec
    if spec.max_trials + trials > numbers.TRIALS:
        said = f"makes more than {numbers.TRIALS} configurations with the {spec.max_trials} that there are"
        raise _refused("trials", trials, said, "Create a further study.")
    if spec.shares_checkpoints:
        remedy = (
            "Give more --steps, or create a study with more trials: what new members would copy may be gone."
        )
        raise _refused("trials", trials, "cannot join a population that trains", remedy)
    name, ended = state.study.name, state.study.state.ended
    own = "one whose `enqueue` lists your own" if ended else f"add your own: `headrace add {name}`"
    if isinstance(spec.sampler, BestOfSampler):
        said = f"cannot be added: its configurations are the best of study '{spec.sampler.study}'"
        raise _refused(
            "trials", trials, said, f"Create a study with a larger `transfer: {{top: …}}`, or {own}."
        )
    left = state.fold.points_left(state.study.sampled, state.sampled_limit)
    if left is not None and trials > left:
        size = state.fold.sampler.size
        has = "has no further configuration" if left <= 0 else f"has {left} further configurations"
        remedy = f"Create a study with a finer grid, or {own}."
        if left > 0:
            remedy = f"Give at most {left}."
        raise _refused("trials", trials, f"is more than there are: the grid of {size} {has}", remedy)


# --- what continues -----------------------------------------------------------------------------------


def _over(state: CycleState, reasons: frozenset[Reason]) -> Deciding[list[Over]]:
    """The trials that ended for these reasons, and those that the end of the study cut off, by number."""
    found: list[Over] = []
    after, ended = -1, state.study.state.ended
    if not (reasons or ended):
        return found
    while page := (yield from ask(OverTrials(number=after, reasons=reasons, cut_off=ended))):
        after = page[-1].trial.number
        found += [one for one in page if one.trial.number not in state.reopened]
    state.load(trials=(one.trial for one in found))
    return found


def _had_all(state: CycleState, trial: Trial) -> bool:
    """Whether a trial ended because it had the full budget."""
    if trial.reason is not Reason.COMPLETED:
        return False
    if trial.baseline:
        return trial.step >= state.study.spec.max_steps
    return trial.rungs == len(state.fold.policy.ladder(trial.bracket))


def _failed_since(state: CycleState, trial: Trial) -> bool:
    """Whether a trial completed an earlier full budget and failed on its way to the present one, and has not been
    left behind: a population does not wait for its members."""
    if trial.reason is not Reason.FAILED or all(end.budget is None for end in trial.earlier_ends):
        return False
    return trial.baseline or not state.fold.policy.left(trial.rungs)


def _begin_again(state: CycleState, why: str, fold: Fold, over: Sequence[Over]) -> Deciding[None]:
    """Continue the study with a new fold, whose policy knows these trials as not over."""
    state.study = replace(state.study, revision=state.study.revision + 1)
    if state.study.state.ended:
        state.reopen_study(why)
    until.begin_anew(state)
    state.reopened |= set(_numbers(over))
    yield from ask(FoldIn(fold=fold, reopened=state.reopened))
    state.fold = fold
    state.wants_placement = True


def _stays(state: CycleState, trial: Trial) -> bool:
    """Whether a trial that had the old budget ends there, because the policy stops it."""
    if trial.baseline:
        return False
    verdict = state.fold.policy.verdict(trial.number, trial.bracket, trial.rungs - 1, more=state.more)
    if verdict.action is not Ruling.STOP:
        return False
    state.emit(events.trial_stays(trial.number, verdict.explanation.sentence))
    state.fold.policy.withdraw(trial.number)
    state.reopened -= {trial.number}
    return True


def _reopen(state: CycleState, over: Over, why: str) -> None:
    """Let a trial continue where it was: up to its next rung, or waiting at the last one."""
    trial = over.trial
    ladder = state.fold.policy.ladder(trial.bracket)
    milestone = _next_level(trial, ladder) if trial.baseline else None
    if not trial.baseline and (over.went_on or not trial.rungs):
        milestone = ladder[trial.rungs]
    saved = trial.checkpoint
    if saved is not None and milestone is not None and saved.step >= milestone:
        # It reported at this rung without the metric and was not recorded: it must report there again.
        saved = state.update(trial.number, checkpoint=None).checkpoint
    lost = saved is None and trial.step > 0
    start = "from the beginning" if saved is None else f"from its checkpoint at step {saved.step}"
    if milestone is None:
        start = "it waits to be promoted"
    if lost:
        start = (
            f"{start}; it has no checkpoint, so it {'would start' if milestone is None else 'starts'} over"
        )
    state.reopen(trial.number, milestone, f"{why}: {start}", ended=over.end_cursor)


def _next_level(trial: Trial, ladder: tuple[int, ...]) -> int:
    """Where the baseline reports next, as no rung records it."""
    done = trial.checkpoint.step if trial.checkpoint else 0
    return next((level for level in ladder if level > done), ladder[-1])


def _judge(state: CycleState, trial: Trial) -> None:
    """Ask the policy about a trial that was recorded at what used to be the last rung."""
    number, bracket, rung = trial.number, trial.bracket, trial.rungs - 1
    found = reports.ruled(state, number, bracket, rung)
    if found.action is not Ruling.CONTINUE:
        state.explain(number, found.action, found.explanation)
        return
    state.mark_promoted(number, bracket, rung)
    state.explain(number, Ruling.CONTINUE, found.explanation)
    if found.exploit is not None:
        state.exploit(found.exploit)
    state.update(number, milestone=state.fold.policy.ladder(bracket)[rung + 1])
