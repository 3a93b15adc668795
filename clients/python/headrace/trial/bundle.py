"""A bundle as a script sees it: several trials of one model that train in one process, as a fused group.

```python
def train(bundle: trial.Bundle) -> None:
    group = hydro.fuse(bundle.model(make_model), optimizer="adamw")   # empty: trials join and leave
    bundle.track(group=group)
    for turn in bundle.steps():
        group.step(batch, loss_fn)
        bundle.report(val_loss=evaluate(group))              # a value for each of group.ids
```

Each member is an ordinary trial, with its own reports, decisions and checkpoint. A turn is one step of each
member that trains. Members may be at different steps; between turns some leave and others join. The same
function also runs a study without `fuse`, as bundles of one, and runs by hand.
"""

import inspect
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any, NoReturn

from headrace.trial import cores, models
from headrace.trial.bundle_crew import Crew
from headrace.trial.bundle_member import Member
from headrace.trial.bundle_values import rows
from headrace.trial.one_of_a_kind import OneOfAKind


class SharedParams:
    """Parameters that are equal for all members, read by name. Once one is read, a trial with a different value
    can no longer join.
    """

    def __init__(self, crew: Crew) -> None:
        self._crew = crew

    def __getitem__(self, name: str) -> Any:
        """The value. Raises `ValueError` if members differ, and `KeyError` if they have no such parameter."""
        values = [member.params.get(name) for member in self._crew.live]
        if any(value != values[0] for value in values):
            raise ValueError(
                f"bundle.params[{name!r}]: members have {', '.join(sorted({repr(value) for value in values}))}. Name "
                "it in fuse.apart, so that a bundle's trials have one value; or read it from each member's own params"
            )
        if not values or values[0] is None:
            return self._crew.live[0].params[name] if values else _no_members(name)
        self._crew.built_with[name] = values[0]
        return values[0]

    def __iter__(self) -> NoReturn:
        """Not supported: every parameter that is read shapes the whole bundle."""
        raise TypeError(
            "read bundle.params by name, as in bundle.params['width']; a member's parameters are member.params"
        )


class Bundle(OneOfAKind):
    """The trials that one process trains together; created by `trial.main` or the worker, never directly."""

    def __init__(self, crew: Crew) -> None:
        self.params = SharedParams(crew)
        self._crew = crew
        self._every: int | None = None
        self._begun = self._in_turn = self._reported = False

    if not TYPE_CHECKING:

        def __getattr__(self, name: str) -> NoReturn:
            raise AttributeError(
                f"a Bundle has no {name!r}; each trial's own is in bundle.members: params, step, seed, state",
                name=name,
            )

    def __len__(self) -> int:
        """The number of members that train now."""
        return len(self.members)

    @property
    def members(self) -> tuple[Member, ...]:
        """The members that train, in the order of `group.ids`; before `track`, all members."""
        return tuple(self._crew.training if self._crew.tracked else self._crew.live)

    @property
    def member_steps(self) -> list[int]:
        """Each member's step, in the order of `group.ids`."""
        return [member.step for member in self._crew.training]

    @property
    def seats(self) -> int:
        """The most members that the process may have."""
        return self._crew.seats

    @property
    def cpus(self) -> int:
        """How many cores this process may use; see `Trial.cpus`."""
        return cores.cpus()

    @property
    def loader_workers(self) -> int:
        """How many workers a data loader should have; see `Trial.loader_workers`."""
        return cores.loader_workers(self.cpus)

    def step_of(self, member: int) -> int:
        """The step of the member with this id in the group."""
        for one in self._crew.training:
            if one.id == member:
                return one.step
        raise KeyError(
            f"no member {member!r} trains; those that do are {[one.id for one in self._crew.training]}"
        )

    def model(self, factory: Any) -> Any:
        """What to fuse: the model, or the function that creates one, with the arguments that it needs.

        In a study with `surrogate` it is the small copy. Arguments without a default come from `bundle.params`,
        so they shape the whole bundle.
        """
        is_module = models.is_module(factory)
        surrogate = self._crew.surrogate
        if not callable(factory) or (is_module and surrogate is not None):
            raise TypeError(f"bundle.model(...) got a {type(factory).__name__}; give the model's function")
        if is_module:
            return factory
        whole = models.with_arguments(factory, self.params)
        return whole if surrogate is None else models.small_copy(whole, surrogate, asked="bundle.model(...)")

    def track(
        self, *, group: Any, member: Callable[[Member], Mapping[str, Any]] | None = None, **shared: Any
    ) -> None:
        """Registers the empty group. Members join it now, and between turns.

        `member` returns a member's settings for `group.add`. By default these are the trial's seed and all its
        parameters except those read from `bundle.params`. Other objects that the loop reads are given by name,
        and shared by all members. Raises `TypeError` for an object that is not a group or cannot be saved, and
        `ValueError` for a group that already has members.
        """
        if self._crew.tracked:
            raise ValueError("bundle.track(...) was called before: a bundle has one group")
        lacks = [name for name in ("add", "drop", "member_state", "ids") if not hasattr(group, name)]
        if lacks:
            raise TypeError(
                f"bundle.track(group=...) got a {type(group).__name__}, which has no {', '.join(lacks)}; give what "
                "hydro.fuse(...) returns"
            )
        if len(group.ids):
            raise ValueError(
                f"bundle.track(group=...) got a group with {len(group.ids)} members; make it empty, hydro.fuse(model, "
                "optimizer=...): members join as trials do"
            )
        self._crew.track(group, member, shared)

    def steps(self, *, checkpoint_every: int | None = None) -> Iterator[int]:
        """Turns, counted from 1 in this process, until no member is left.

        `checkpoint_every=n` also saves a member that reports at least n steps after its last save.
        """
        if checkpoint_every is not None and checkpoint_every < 1:
            raise ValueError(f"checkpoint_every must be at least 1, not {checkpoint_every}")
        if not self._crew.tracked:
            raise ValueError("call bundle.steps() after bundle.track(group=...)")
        if self._begun:
            raise ValueError("bundle.steps() was called before: a bundle has one loop")
        self._begun, self._every = True, checkpoint_every
        turn = 0
        while self._crew.ready():
            turn += 1
            self._crew.begin()
            self._in_turn, self._reported = True, False
            try:
                yield turn
            finally:
                self._in_turn = False
            if not self._reported:
                self._refuse_silence()

    def report(
        self, metrics: Mapping[str, Any] | None = None, /, *, save: bool = False, **named: Any
    ) -> None:
        """Reports the turn, once: for each metric, one value per member, in the order of `group.ids`.

        Members at their milestone are saved first; `save=True` saves all. The group changes after the turn, not
        here. Raises `TypeError` or `ValueError` if there is not one value per member, and if a metric that the
        study reads is missing.
        """
        if not self._crew.tracked:
            raise ValueError(
                "call bundle.report(...) after bundle.track(group=...), inside `for turn in bundle.steps():`"
            )
        if not self._in_turn:
            raise ValueError("call bundle.report(...) inside `for turn in bundle.steps():`")
        if self._reported:
            raise ValueError(
                "bundle.report(...) was called before in this turn; report all metrics together, once"
            )
        if "step" in named:
            raise TypeError(
                "bundle.report(step=...): each member has a step of its own, and a turn is one of each"
            )
        told = rows(metrics, named, self._crew.training)
        self._reported = True
        self._crew.report(told, save=save, every=self._every)

    def _refuse_silence(self) -> None:
        for member in self._crew.training:
            if member.at_milestone:
                raise ValueError(
                    f"{member.name} reached step {member.step}, where it is compared, and nothing was reported: call "
                    "bundle.report(...) in each turn"
                )


def takes_bundle(function: Callable[..., Any]) -> bool:
    """Whether a training function takes a bundle, according to its first parameter's name or type."""
    try:
        first = next(iter(inspect.signature(function).parameters.values()), None)
    except (TypeError, ValueError):
        return False
    if first is None:
        return False
    kind = first.annotation
    named = kind.rpartition(".")[2].strip("'\"") == "Bundle" if isinstance(kind, str) else kind is Bundle
    return named or (first.name == "bundle" and kind is inspect.Parameter.empty)


def _no_members(name: str) -> NoReturn:
    raise KeyError(f"{name!r}: the bundle has no members")
