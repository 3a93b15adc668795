"""The trial as a script sees it: what to try, what to save, where it is, and whether to continue.

The order of events in one process: construction reads the checkpoint (if any); `track` gives each object its
state; the first iteration of `steps` restores `state` and the random generators, last of all, and tells the
runtime that the loop starts. `report` saves first and then reports, so that a reported step can always be
continued from.
"""

import logging
import time
from collections.abc import Callable, ItemsView, Iterable, Iterator, KeysView, Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn, Protocol

from headrace.elsewhere import TRIAL, no_attribute
from headrace.metrics import MetricError, metrics_of, to_floats
from headrace.steps import (
    TOGETHER,
    begun_anew,
    counted,
    counted_anew,
    draws_anew,
    may_begin_anew,
    over,
    refusal,
    returned_early,
    whole,
)
from headrace.trial import after_loop, cores, elsewhere, memory, models
from headrace.trial.best import Best
from headrace.trial.codec import try_encode
from headrace.trial.configuration import Params
from headrace.trial.counts import counts_on
from headrace.trial.one_of_a_kind import OneOfAKind
from headrace.trial.restore import Restore, has_setting
from headrace.trial.runtime import TOLD, Action, Assignment, Ended, OwnEnd, Report, Runtime, Surrogate
from headrace.trial.saving import Content, Saver
from headrace.trial.schedules import Schedules
from headrace.trial.shared_files import shared_checkpoints, told
from headrace.trial.steps_taken import OPTIMIZER, StepsTaken
from headrace.trial.tracking import Tracked, TrackedFiles, Unchanged, named_by_type, tracked
from headrace.trial.turn import Turn

logger = logging.getLogger("headrace.trial")
LOOKS = 3
"""At how many reports of a process its folder is searched for the script's own checkpoints."""


class Observer(Protocol):
    """Is called at the moments that matter for resuming; `headrace check` is one."""

    def tracked(self, t: "Trial") -> None:
        """`t.track(...)` is done, and its objects are restored."""

    def begun(self, t: "Trial") -> None:
        """Everything is restored; `t.steps()` yields its first step next."""

    def reporting(self, t: "Trial", step: int) -> None:
        """A checkpoint is complete, or would be."""

    def body_ended(self, t: "Trial") -> None:
        """The script has come back to `t.steps()` after a step."""


class Trial(OneOfAKind):
    """One configuration being trained; created by `trial.main`, `trial.current` or the worker, never directly."""

    def __init__(self, assignment: Assignment, runtime: Runtime, observer: Observer | None = None) -> None:
        self.params: Mapping[str, Any] = Params(assignment.params)
        # The script's own plain values (numbers, strings, lists, tensors) that are saved with the tracked objects.
        self.state: dict[str, Any] = {}
        self._assignment = assignment
        self._runtime = runtime
        self._observer = observer
        self._tracked: dict[str, Tracked | TrackedFiles] = {}
        memory.apply_budget()
        folder = assignment.restore_dir
        self._restore = (
            None if folder is None else Restore(folder, assignment.rank, assignment.ranks, assignment.seed)
        )
        self._schedules = Schedules(resumed=self._restore is not None)
        self._steps_taken = StepsTaken(self._restore.member.get("step") if self._restore else 0)
        self._step = self._reported_at = self._restore.loop_step if self._restore else 0
        self._reported_step = self._saved_step = self._restore.step if self._restore else 0
        self._furthest_step = self._reported_step
        if self._restore is not None:
            self._restore.put_back_values(self.state)
        self._next_milestone = assignment.next_milestone
        self._sequence = 0
        self._checkpoint_every: int | None = None
        self._begun = False
        self._looping = self._looped = self._in_step = self._asked_ended = False
        self._left_as: dict[str, Any] = {}  # what a restored optimizer kept from other parameters
        self._turn = Turn()
        self._saver = Saver(assignment)
        self._best = Best(assignment)
        self._longest_s = 0.0  # between two reports
        self._copy: Any = None  # the small copy that the script requested
        self._end: Ended | None = None
        self._at_budget: after_loop.Marks | None = None  # at the report of the full budget, if it is saved
        self._returned = False  # the function has returned, and its result is being reported
        self._warned: set[str] = set()
        self._to_tell: list[str] = []  # warnings that go with the next report
        self._train_started = time.monotonic()
        self._made = time.time()

    if not TYPE_CHECKING:  # hidden from type checkers, so that they report unknown names

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(no_attribute("Trial", name, TRIAL), name=name, obj=self)

    def __getitem__(self, name: str) -> Any:
        return self.params[name]

    def __iter__(self) -> Iterator[str]:
        return iter(self.params)

    def get(self, name: str, default: Any = None) -> Any:
        """A parameter's value; `default` if this configuration does not have it, as with `when` in the space."""
        return self.params.get(name, default)

    def items(self) -> ItemsView[str, Any]:
        """The parameters with their values."""
        return self.params.items()

    def keys(self) -> KeysView[str]:
        """The names of its parameters. A trial works as a mapping of them, as in `t["lr"]` and `build(**t)`."""
        return self.params.keys()

    @property
    def name(self) -> str:
        """`studies/{study}/trials/{number}`."""
        return self._assignment.trial

    @property
    def number(self) -> int:
        """The trial's number within its study; 0 in a run by hand."""
        number = self.name.rpartition("/")[2]
        return int(number) if number.isdecimal() else 0

    @property
    def id(self) -> str:
        """A unique id among all trials of this and all other studies, including deleted ones of the same name.

        Use it in the names of your own files, because all trials share a folder. It has letters, digits and
        hyphens.
        """
        return self._assignment.id or self.name.replace("/", "-")

    @property
    def seed(self) -> int:
        """The trial's own seed. The global random generators have already been seeded with it."""
        return self._assignment.seed

    @property
    def step(self) -> int:
        """The step being trained, or last trained; 0 before the first."""
        return self._step

    @property
    def max_steps(self) -> int:
        """The full budget in steps: what a learning-rate schedule should span, even if this trial is stopped early."""
        return self._assignment.max_steps

    @property
    def resumed(self) -> bool:
        """Whether this process continues from a checkpoint."""
        return self._restore is not None

    @property
    def slots(self) -> tuple[int, ...]:
        """The granted slots' indices."""
        return self._assignment.slots

    @property
    def world_size(self) -> int:
        """The number of granted slots."""
        return max(1, len(self.slots))

    @property
    def slot_share(self) -> float:
        """The granted share of each slot: 1.0, or less if several trials share a GPU."""
        return (self._assignment.slot_milli or 1000) / 1000

    @property
    def memory_bytes(self) -> int:
        """The memory budget on each slot; 0 if the trial has all of it.

        PyTorch's allocator is limited to it; memory that is allocated by other means is not.
        """
        return self._assignment.memory_bytes

    @property
    def cpus(self) -> int:
        """How many cores this process may use: its share of the grant's cores, at least 1.

        The number grows with the grant. In a run by hand, it is the number of the machine's cores.
        """
        return cores.cpus()

    @property
    def loader_workers(self) -> int:
        """How many workers a data loader of this process should have, such as `DataLoader(num_workers=…)`.

        With a GPU: all its cores but one, at most 16. On CPU slots: a quarter of them, because the model needs
        the rest. 0 means that the process loads its data itself.
        """
        return cores.loader_workers(self.cpus)

    @property
    def rank(self) -> int:
        """This process's number in a gang with one process for each slot (`processes: per_slot`); 0 otherwise.

        Every rank calls `track` and, at the same steps, `report`. Each saves its own state. Rank 0's report
        counts, and all get the same decision.
        """
        return self._assignment.rank

    @property
    def ended(self) -> bool:
        """Whether the trial was asked to leave before its full budget. Code after the loop can check this to run
        only if the trial reached its budget.
        """
        self._asked_ended = self._asked_ended or self._looping
        return self._end is not None and self._reported_step < self.max_steps

    @property
    def surrogate(self) -> Surrogate | None:
        """The study's settings for the small copy that its trials train; None without one, and in a run by hand."""
        return self._assignment.surrogate

    @property
    def plan(self) -> Path | None:
        """The folder with the files of the plan for a transfer's target: `plan.json`, and those of the plan's
        `target`. All ranks of a gang get the same one. None without a plan, and in a run by hand.
        """
        return self._assignment.plan_dir

    def model(self, factory: Callable[..., Any]) -> Any:
        """The model that a function creates; in a study with `surrogate`, a small copy of it.

        The function's arguments without a default are filled from the parameters of the same names. A copy needs
        its own learning rates: create the optimizer with `headrace_torch.hydro.optimizer(model, "adamw",
        lr=...)`, which creates an ordinary one for an ordinary model. Raises `TypeError` for anything that is
        not a function, and `ValueError` for a model other than the study's.
        """
        if not callable(factory) or models.is_module(factory):
            raise TypeError(f"t.model(...) got a {type(factory).__name__}; give the model's function")
        whole = self.with_arguments(factory)
        if self.surrogate is None:
            return whole()
        self._copy = models.small_copy(whole, self.surrogate, asked="t.model(...)").build()
        return self._copy

    def with_arguments(self, factory: Callable[..., Any]) -> Callable[..., Any]:
        """A function with its arguments without a default filled from the parameters of the same names."""
        return models.with_arguments(factory, self.params)

    def track(self, *objects: Any, **named: Any) -> None:
        """Registers what the next step reads, by name, and loads it from the checkpoint when resuming.

        An object without a name is named by its type: a `Linear` is `linear`. Accepts anything with `state_dict`
        and `load_state_dict` (modules, optimizers, schedulers, scalers, `ResumableBatches`) and random
        generators (`torch.Generator`, `numpy.random.Generator`, `random.Random`); and what saves itself on all
        ranks of a gang together: DeepSpeed's engines, `headrace_torch.sharded.ShardedState`, anything with
        `save_files(folder)` and `load_files(folder)`. Call it once everything is built and placed on its device.
        Raises `TypeError` for an object that cannot be saved. Raises `ValueError` for a duplicate name, if the
        checkpoint has different objects, and if it was saved by a different number of ranks and cannot be
        redistributed.
        """
        if self._begun:
            raise ValueError(
                "call t.track(...) before the loop: what is tracked later would miss the first checkpoints"
            )
        for name, target in named_by_type(objects, named, known=self._tracked).items():
            entry = tracked(name, target)
            if isinstance(entry, Tracked):
                try_encode(entry.get_state(), name)
            self._tracked[name] = entry
            if self._restore is not None:
                self._restore.give(entry, self.params)
            if name == OPTIMIZER:
                self._steps_taken.follow(target)
        if self._restore is not None:
            self._restore.put_back(self.state)
        self._schedules.begin(self._tracked, self._reported_step)
        if self._observer is not None:
            self._observer.tracked(self)

    def steps(self, *, checkpoint_every: int | None = None) -> Iterator[int]:
        """The remaining steps, up to `max_steps`; ends early if the trial is asked to leave.

        `checkpoint_every=n` also saves at the first report at least n steps after the last save, so that less is
        lost if a machine fails.
        """
        if checkpoint_every is not None:
            checkpoint_every = counted("checkpoint_every", checkpoint_every)
        self._checkpoint_every = checkpoint_every
        self._begin()
        if self._restore is not None:
            self._restore.put_back(self.state)
        self._train_started = time.monotonic()
        if self._observer is not None:
            self._observer.begun(self)
        self._looping = self._looped = True
        try:
            while self._step < self.max_steps and self._end is None:
                self._step += 1
                self._turn.begin()
                self._in_step = True
                yield self._step
                self._in_step = False
                if self._observer is not None:
                    self._observer.body_ended(self)
        finally:
            self._looping = False

    def report(
        self,
        metrics: Mapping[str, Any] | None = None,
        /,
        *more: object,
        step: int | None = None,
        save: bool = False,
        **named: Any,
    ) -> None:
        """Reports metrics of a step, as in `report(loss=0.2)` or `report({"val/loss": 0.2})`.

        At the milestone it saves first, and waits for the decision.

        Put it last in the loop's body: changes after it are not in the checkpoint. `step` defaults to the step
        of `t.steps()` or, in any other loop, to one more than the last. `save=True` also saves before a
        milestone; so does the best report so far if the study says `keep: best`. Raises `TypeError` for a metric
        that is not a number or has no name. Raises `ValueError` for a step below 1, past the full budget or
        beyond a rung that was not reported, and for a metric that is reported twice, or a second step, in one
        turn of `t.steps()`. If the trial is asked to leave, `t.steps()` ends; in any other loop, `Ended` is
        raised here.
        """
        if self._end is not None:
            if self._looped and not self.ended:
                raise ValueError(f"t.report(...): {over(self._reported_step, self.max_steps)}")
            if self._looping:
                wrong = self._turn.other_step(self._reported_step if step is None else whole(step))
                self._warn_once(
                    "left out",
                    wrong
                    or f"a second report of step {self._reported_step} is ignored: after the first "
                    f"one the trial was told to stop. {TOGETHER}",
                )
            raise self._end
        if more:
            raise TypeError(elsewhere.REPORT)
        try:
            values = to_floats(metrics, named)
        except MetricError as error:
            raise TypeError(f"{error}{elsewhere.metric_hint(error.name)}") from None
        if self._assignment.metric in {**(metrics or {}), **named}.keys() - values.keys():
            raise TypeError(
                f"metric {self._assignment.metric!r} is None; report a number, or NaN where there is none"
            )
        step = self._checked_step(step)
        if self._looping:
            self._turn.record(step, values.keys(), self._roles())
        self._begin()
        train_time_s = time.monotonic() - self._train_started
        if not self._looping:
            self._step = step
        self._warn_about(step, values)
        self._warn_of_shared_files()
        started = time.monotonic()
        self._longest_s = max(self._longest_s, train_time_s)
        # In a gang, often only rank 0 returns a result, and a save would wait for the others.
        saves = not (self._returned and self._assignment.ranks > 1)
        best = saves and self._is_best(step, values)
        folder = self._save(step) if saves and self._due(step, asked=save or best) else None
        if self._observer is not None:
            self._observer.reporting(self, step)
        self._sequence += 1
        decision = self._runtime.report(
            Report(
                sequence=self._sequence,
                step=step,
                metrics=values,
                checkpoint_dir=folder,
                train_time_s=train_time_s,
                save_time_s=time.monotonic() - started if folder is not None else 0.0,
                warnings=tuple(self._to_tell),
                schedules=self._schedules.at_report(self._tracked, step),
                returned=self._returned,
            )
        )
        self._to_tell.clear()
        self._reported_step, self._reported_at = step, self._step
        self._furthest_step = max(self._furthest_step, step)
        self._train_started = time.monotonic()
        if decision.action is Action.CONTINUE:
            self._next_milestone = decision.next_milestone or self._next_milestone
            return
        self._end = Ended(decision.action, decision.reason)
        if step >= self.max_steps and self._saved_step == step:
            self._at_budget = after_loop.marks(self.tracked_objects(), self.state)
        if self._looping or not self.ended:
            return  # `steps` ends; any other loop has reached its end, and the code after it runs
        self._warn_once(
            "ends here",
            f"the trial ends at step {step} ({self._end}), and so does its function: what follows this report does "
            "not run. In `for step in t.steps():` only the loop would end",
        )
        raise self._end

    def _report_returned(self, returned: object, *, required: bool = False) -> None:
        """Reports the function's return value as the result at the full budget, if it has reported nothing.

        A trial that continues from a checkpoint of the full budget has nothing left to report. A gang saves
        nothing here.

        A number is the objective; a mapping has metrics by name. Raises `TypeError` for anything else; with
        `required` also for None. Raises `ValueError` if the trial is also compared before the full budget.
        """
        metric, further = self._assignment.metric, self._assignment.further_metrics
        if self._sequence or self._furthest_step >= self.max_steps or not metric:
            return
        if returned is None and not required:
            return
        result = metrics_of(returned, (metric, *further))
        refused = returned_early(self._furthest_step, self._assignment.rungs, self.max_steps)
        if refused is not None:
            raise ValueError(refused)
        self._returned = True
        self.report(result, step=self.max_steps)

    def _own_end(self) -> OwnEnd:
        """How a program ends by itself, with its state, saved under its last report: otherwise a trial that
        stops early by itself would leave nothing to load.

        If that report was saved, the state may have changed since: the best weights were put back, say. So it is
        saved again, unless the budget is used up, or this process has only looked at a checkpoint: it has reported
        nothing, and lacks objects that the checkpoint holds. If saving fails, the result still counts: the reason is
        returned, and this does not wait for a full disk.
        """
        if self._at_budget is not None:
            now = after_loop.marks(self.tracked_objects(), self.state)
            if names := after_loop.changed(self._at_budget, now):
                self._warn_once("after loop", after_loop.warning(names, self.max_steps))
        if self._end is not None or self._returned:
            return TOLD
        own = OwnEnd(by_itself=self._in_step)
        if self._assignment.checkpoint_dir is None or not self._furthest_step:
            return own
        is_saved = self._saved_step >= self._furthest_step
        if is_saved and (self._furthest_step >= self.max_steps or self._only_looks()):
            return own
        started = time.monotonic()
        try:
            content = self._content(self._furthest_step, self._reported_at)
            folder = self._saver.save_at_end(content, self._sequence + 1)
        except Exception as error:  # noqa: BLE001  (whatever an object raises that saves itself)
            if is_saved and isinstance(error, Unchanged) and len(self._tracked) == 1 and not self.state:
                return own
            why = f"the state at its end, after step {self._furthest_step}, is not saved: {error}"
            if is_saved:
                why = (
                    f"what changed after the last report is not saved: {error}. The checkpoint of step "
                    f"{self._saved_step} stands"
                )
            logger.warning("headrace: %s", why)
            return replace(own, unsaved=why)
        step = self._furthest_step if folder is not None else 0
        return replace(own, checkpoint_dir=folder, step=step, save_time_s=time.monotonic() - started)

    def _only_looks(self) -> bool:
        """Whether this process has reported nothing, and lacks objects of the checkpoint that it resumed from."""
        return not self._sequence and self._restore is not None and bool(self._restore.not_in(self._tracked))

    def _left_in(self) -> int:
        """The step within which the script itself left the loop over `t.steps()`; 0 if it did not."""
        return self._step if self._in_step and not self._asked_ended else 0

    def tracked_objects(self) -> dict[str, Any]:
        """The tracked objects by name."""
        return {name: entry.target for name, entry in self._tracked.items()}

    def shared_objects(self) -> frozenset[str]:
        """The names of the objects tracked with `shared(...)`."""
        return frozenset(name for name, entry in self._tracked.items() if entry.shared)

    def _begin(self) -> None:
        """Called once per process, when the loop starts."""
        if self._begun:
            return
        self._begun = True
        if self._copy is not None:
            models.refuse_plain_optimizer(self._copy)
        if self._restore is not None:
            forgotten = self._restore.not_in(self._tracked)
            if forgotten:
                logger.warning(
                    "headrace: the checkpoint also holds %s, which t.track(...) was not given",
                    ", ".join(forgotten),
                )
            self._runtime.restored(read_time_s=self._restore.read_time_s)
        self._schedules.begin(self._tracked, self._reported_step)
        self._train_started = time.monotonic()

    def _checked_step(self, given: int | None) -> int:
        """The step of a report. Raises `ValueError` for a step that must not be reported."""
        implied = self._step if self._looped else self._step + 1
        step = implied if given is None else whole(given)
        refused = refusal(
            step,
            # An earlier process of the same attempt may have got further.
            since=max(self._furthest_step, self._assignment.last_step),
            rungs=self._assignment.rungs,
            max_steps=self.max_steps if given is not None else max(self.max_steps, step),
            turn=self._step if self._looping and given is not None else None,
        )
        if refused is not None:
            raise ValueError(f"t.report(...): {refused}")
        # The observer is `headrace check`, which reports more.
        if self._restore is not None and not self._sequence and not self._observer:
            self._place_first_report(step, self._restore.step, counted=given is not None)
        return step

    def _place_first_report(self, step: int, restored: int, *, counted: bool) -> None:
        """Checks that the loop of a resumed trial continues. Raises `ValueError` if it counts from the start
        again, and warns if that is not clear.
        """
        if step <= restored:
            raise ValueError(f"t.report(...): {begun_anew(step, restored)}")
        if not (counted or self._looped or counts_on(restored, self.state)):
            self._warn_once("anew", may_begin_anew(restored), tell=True)

    def _due(self, step: int, *, asked: bool) -> bool:
        interval = self._checkpoint_every
        due = interval is not None and step - self._saved_step >= interval
        due = due or step >= self._next_milestone or self._assignment.asked_to_leave
        return (asked or due) and self._assignment.checkpoint_dir is not None

    def _is_best(self, step: int, values: Mapping[str, float]) -> bool:
        """Whether this report is saved because of its value: as the best one, or as the one that ends the study."""
        if not self._best.wanted or not (self._tracked or self.state):
            return False
        best = step > self._furthest_step and self._best.observe(values)
        return self._saver.first_says(best, self._sequence + 1, longest_s=self._longest_s)

    def _trained_with(self) -> dict[str, Any]:
        """The parameters, where known with the values that the tracked optimizers really have: a trial that
        continues from this checkpoint is warned about parameters that were never set.
        """
        left = {name: old for name, old in self._left_as.items() if has_setting(self._tracked, name, old)}
        return {**self.params, **left}

    def _content(self, step: int, loop_step: int) -> Content:
        taken = self._steps_taken.known
        return Content(
            step=step,
            loop_step=loop_step,
            tracked=self._tracked,
            state=self.state,
            params=self._trained_with(),
            member={} if taken is None else {"step": taken},
        )

    def _save(self, step: int) -> Path | None:
        content = self._content(step, self._step)
        folder = self._saver.save(content, self._sequence + 1, longest_s=self._longest_s)
        if folder is not None:
            self._saved_step = step
            return folder
        if self._returned:
            return None
        self._warn_once(
            "untracked",
            "nothing is tracked, so after a pause this trial starts again from the beginning; "
            "call t.track(model=..., optimizer=...), or keep what has no state_dict() in t.state. A script that "
            "resumes from its own checkpoint must report its steps, t.report(step=...), or they count from 1 again",
        )
        return None

    def _roles(self) -> dict[str, str]:
        """The metrics that the study reads, and their roles."""
        read = {
            self._assignment.metric: "the study's objective",
            **dict.fromkeys(self._assignment.further_metrics, "a further objective"),
            **dict.fromkeys(self._assignment.constraint_metrics, "a constraint"),
        }
        return {name: role for name, role in read.items() if name}

    def _warn_about(self, step: int, values: dict[str, float]) -> None:
        missing = [f"{name!r} ({role})" for name, role in self._roles().items() if name not in values]
        if missing:
            self._warn_once(
                "metric",
                f"THIS REPORT HAS NO {', '.join(missing)}; it has {_names(values)}. Report it under that name, "
                "or correct the study file: a trial that never reports it is never the best",
                tell=True,
            )
        if self._restore is not None and not self._sequence:
            self._warn_of_what_was_brought_back(self._restore)
        elif not (self._sequence or self._tracked or self.state) and step <= self._assignment.last_step:
            self._warn_once("counted again", counted_anew(step, self._assignment.last_step), tell=True)
        if self._sequence and step == self._reported_step:
            self._warn_once(
                "twice",
                f"step {step} is reported twice; the first report counts at a rung. {TOGETHER}",
                tell=True,
            )
        elif self._sequence and step < self._reported_step:
            self._warn_once(
                "back",
                f"step {step} is reported after step {self._reported_step}; steps are expected to grow",
                tell=True,
            )

    def _warn_of_shared_files(self) -> None:
        if self._sequence >= LOOKS or not self._assignment.rungs or self.rank or self._observer is not None:
            return
        files = shared_checkpoints(Path.cwd(), self._made)
        if files:
            self._warn_once("shared file", told(files), tell=True)

    def _warn_of_what_was_brought_back(self, restore: Restore) -> None:
        if restore.draws_anew():
            self._warn_once("generators", draws_anew(restore.step), tell=True)
        for name, old in restore.overriding(self.params, self._tracked):
            self._left_as[name] = old
            self._warn_once(
                f"overridden {name}",
                f"{name} is {self.params[name]} now, but the tracked optimizer has {old}, as the checkpoint "
                f"brought it: set it inside the loop, from t.params[{name!r}]",
                tell=True,
            )

    def _warn_once(self, topic: str, message: str, *, tell: bool = False) -> None:
        """Prints a message in the trial's log; with `tell`, also sends it to those who watch the study."""
        if topic not in self._warned:
            self._warned.add(topic)
            logger.warning("headrace: %s", message)
            if tell:
                self._to_tell.append(message)


def _names(values: Iterable[str]) -> str:
    return ", ".join(sorted(values)) or "nothing"
