"""The trial table that Optuna's samplers read: a storage that holds only one study's results.

Optuna's own storages copy trials, lock, and keep what a sampler does not need. Here a trial is made once, when its
result arrives, and every later proposal only adds to the list. So the work besides the sampler's own does not grow
with the number of trials (Optuna issues 3053, 3048 and 4444).

Trials are numbered in the order in which their results arrived. After them come the pending ones, as running
trials, and last the one that is being proposed. The table belongs to one thread of one process and is a cache: the
worker process that holds it may die at any time, and the next one gets the same results again.
"""
# ruff: noqa: ARG002  (the methods have the shape that Optuna gives them)

from collections.abc import Container, Mapping, Sequence
from typing import Any

from optuna.distributions import BaseDistribution
from optuna.exceptions import UpdateFinishedTrialError
from optuna.storages import BaseStorage
from optuna.study import StudyDirection
from optuna.trial import FrozenTrial, TrialState

from headrace_services.scheduler.core.records import Params
from headrace_services.scheduler.samplers.dimensions import Dimension

_STUDY = 0
_NAME = "study"


def frozen(
    number: int,
    state: TrialState,
    *,
    values: Sequence[float] | None = None,
    params: Params | None = None,
    shown: Mapping[str, Dimension] | None = None,
    attrs: Mapping[str, object] | None = None,
) -> FrozenTrial:
    """A trial in Optuna's form: those of its parameters that are `shown`, in Optuna's values."""
    seen = {name: shown[name] for name in params or {} if name in shown} if shown else {}
    return FrozenTrial(
        number=number,
        state=state,
        value=None,
        values=values,
        datetime_start=None,
        datetime_complete=None,
        params={name: dimension.inside((params or {})[name]) for name, dimension in seen.items()},
        distributions={name: dimension.distribution for name, dimension in seen.items()},
        user_attrs={},
        system_attrs=dict(attrs or {}),
        intermediate_values={},
        trial_id=number,
    )


class TrialTable(BaseStorage):
    """One study: finished trials, which are only ever added, and the ones in flight."""

    def __init__(self, directions: Sequence[StudyDirection]) -> None:
        self._directions = list(directions)
        self._finished: list[FrozenTrial] = []
        self._shown: list[FrozenTrial] = []
        self._flying: list[FrozenTrial] = []
        self._attrs: dict[str, Any] = {}

    # --- used by the adapter ----------------------------------------------------------------------------

    @property
    def finished(self) -> Sequence[FrozenTrial]:
        """The trials with results, by arrival."""
        return self._finished

    @property
    def attrs(self) -> dict[str, Any]:
        """What samplers keep for the whole study."""
        return self._attrs

    def append(self, trial: FrozenTrial) -> None:
        """Add a trial with a result; its number and its id are its index."""
        assert trial.number == trial._trial_id == len(self._finished)
        self._finished.append(trial)

    def show(self, places: Sequence[int] | None, running: Sequence[FrozenTrial]) -> None:
        """Let the next proposal see the finished trials at these indices (None for all), and the running ones."""
        self._shown = self._finished if places is None else [self._finished[place] for place in places]
        self._flying = list(running)

    def land(self) -> None:
        """Forget the trial that was being proposed."""
        self._flying.pop()

    def next_number(self) -> int:
        """The number that the next trial in flight gets."""
        return len(self._finished) + len(self._flying)

    # --- Optuna's storage interface ------------------------------------------------------------------------

    def create_new_study(self, directions: Sequence[StudyDirection], study_name: str | None = None) -> int:
        """Unused: the one study already exists."""
        raise NotImplementedError

    def delete_study(self, study_id: int) -> None:
        """Unused: the one study is never deleted."""
        raise NotImplementedError

    def set_study_user_attr(self, study_id: int, key: str, value: Any) -> None:
        """Unused: no sampler sets one."""
        raise NotImplementedError

    def set_study_system_attr(self, study_id: int, key: str, value: Any) -> None:
        """Store an attribute of the study."""
        self._attrs[key] = value

    def get_study_id_from_name(self, study_name: str) -> int:
        """The one study's id."""
        return _STUDY

    def get_study_name_from_id(self, study_id: int) -> str:
        """The one study's name."""
        return _NAME

    def get_study_directions(self, study_id: int) -> list[StudyDirection]:
        """The direction of each objective."""
        return self._directions

    def get_study_user_attrs(self, study_id: int) -> dict[str, Any]:
        """Return no attributes, as none are stored."""
        return {}

    def get_study_system_attrs(self, study_id: int) -> dict[str, Any]:
        """The stored attributes of the study."""
        return self._attrs

    def get_all_studies(self) -> list[Any]:
        """Unused: no sampler lists the studies of a table."""
        raise NotImplementedError

    def create_new_trial(self, study_id: int, template_trial: FrozenTrial | None = None) -> int:
        """The trial that is being proposed."""
        number = self.next_number()
        self._flying.append(frozen(number, TrialState.RUNNING))
        return number

    def set_trial_param(
        self,
        trial_id: int,
        param_name: str,
        param_value_internal: float,
        distribution: BaseDistribution,
    ) -> None:
        """Set a parameter of the trial that is being proposed."""
        trial = self._open(trial_id)
        trial.params[param_name] = distribution.to_external_repr(param_value_internal)
        trial.distributions[param_name] = distribution

    def set_trial_state_values(
        self, trial_id: int, state: TrialState, values: Sequence[float] | None = None
    ) -> bool:
        """Unused: results come only from the study's rows."""
        raise NotImplementedError

    def set_trial_intermediate_value(self, trial_id: int, step: int, intermediate_value: float) -> None:
        """Unused: results come only from the study's rows."""
        raise NotImplementedError

    def set_trial_user_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Store an attribute of a trial in flight."""
        self._open(trial_id).user_attrs[key] = value

    def set_trial_system_attr(self, trial_id: int, key: str, value: Any) -> None:
        """Store an attribute of a trial in flight."""
        self._open(trial_id).system_attrs[key] = value

    def get_trial(self, trial_id: int) -> FrozenTrial:
        """The trial with this id."""
        if trial_id < len(self._finished):
            return self._finished[trial_id]
        return self._flying[trial_id - len(self._finished)]

    def get_all_trials(
        self, study_id: int, deepcopy: bool = True, states: Container[TrialState] | None = None
    ) -> list[FrozenTrial]:
        """The trials that the next proposal sees, in the order of their numbers. They are not copied: samplers
        only read."""
        trials = [*self._shown, *self._flying]
        return trials if states is None else [trial for trial in trials if trial.state in states]

    def get_trial_id_from_study_id_trial_number(self, study_id: int, trial_number: int) -> int:
        """Numbers are ids."""
        return trial_number

    def get_trial_number_from_id(self, trial_id: int) -> int:
        """Numbers are ids."""
        return trial_id

    def _open(self, trial_id: int) -> FrozenTrial:
        if trial_id < len(self._finished):
            raise UpdateFinishedTrialError(f"trial {trial_id} has its result")
        return self._flying[trial_id - len(self._finished)]
