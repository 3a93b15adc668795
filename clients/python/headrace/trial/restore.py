"""The checkpoint that a process continues from, and the order in which it is restored.

Objects get their state when they are tracked. Plain values and the random generators are also restored then, and
once more when the loop starts, so that anything a script initialises or seeds in between does no harm.

A rank of a gang gets what it saved itself. A gang of a different size than the one that saved gets the state
that was the same on all ranks. An object that differed has to say how its states are redistributed; otherwise it
is rejected by name.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.trial import checkpoint, rng
from headrace.trial.saving import RNG, of_object, of_value
from headrace.trial.tracking import Tracked, TrackedFiles


def has_setting(tracked: Mapping[str, Tracked | TrackedFiles], name: str, value: Any) -> bool:
    """Whether a tracked optimizer has this value of a setting."""
    groups = (group for one in tracked.values() for group in getattr(one.target, "param_groups", ()))
    return any(group.get(name) == value for group in groups)


class Restore:
    """One checkpoint, read by one of several ranks. Reading it raises `UnreadableError`, for which the program
    is not to blame. Errors of the program's objects when they load it are raised unchanged.
    """

    def __init__(self, folder: Path, rank: int = 0, world_size: int = 1, seed: int = 0) -> None:
        started = time.monotonic()
        self._folder = folder
        self._rank = rank
        self._world = world_size
        self._seed = seed
        own = checkpoint.read_to_continue(folder, rank if rank in checkpoint.ranks_in(folder) else 0)
        self._parts: dict[int, dict[str, Any]] = {own["rank"]: own}
        self._saved_world: int = own["world_size"]
        self._everywhere = frozenset(own["everywhere"])
        self._as_rank_0 = frozenset(own["as_rank_0"])
        # The step that was reported with it, and the one that the loop had reached: a script may report in other
        # units.
        self.step: int = own["step"]
        self.loop_step: int = own["loop_step"]
        # A bundle group's additional state of its member; for a single trial, its optimizer's steps.
        self.member: Mapping[str, Any] = own.get("member", {})
        self._files: list[str] = own["files"]
        self._params: dict[str, Any] = own["params"]
        self._state = self._own_values()
        self._rng: rng.State | None = self._own_generators()
        # The fingerprint of the generators as they were seeded; None once they are restored.
        self._seeded: dict[str, bytes] | None = rng.digests()
        self.read_time_s = time.monotonic() - started

    def give(self, entry: Tracked | TrackedFiles, params: Mapping[str, Any]) -> None:
        """Loads the object. Raises `ValueError` if the checkpoint does not contain it, if it was saved by a
        different number of ranks and cannot be redistributed, or if it does not match and was trained with other
        parameters.
        """
        names = self.names()
        if entry.name not in names:
            raise ValueError(
                f"t.track({entry.name}=...): the checkpoint holds {', '.join(sorted(names)) or 'nothing'}, "
                f"but no {entry.name!r}; resume a trial with the script that it was paused with"
            )
        if (entry.name in self._files) != isinstance(entry, TrackedFiles):
            raise ValueError(
                f"t.track({entry.name}=...): the checkpoint was saved by an object of another kind; "
                "resume a trial with the script that it was paused with"
            )
        started = time.monotonic()
        try:
            self._load(entry)
        except Exception as error:
            changed = ", ".join(f"{name}={old} (now {params[name]})" for name, old in self._changed(params))
            if not changed:
                raise
            raise ValueError(
                f"t.track({entry.name}=...): the checkpoint, trained with {changed}, does not fit. A parameter "
                f"that shapes the model cannot mutate: leave it out of the study's policy.mutable. {error}"
            ) from error
        self.read_time_s += time.monotonic() - started

    def put_back_values(self, state: dict[str, Any]) -> None:
        """The plain values into `state`. The generators are left, so that the script builds (a split of its
        data, for example) with the same random numbers as the first time.
        """
        state.update(self._state)

    def put_back(self, state: dict[str, Any]) -> None:
        """The plain values into `state`, and the global generators."""
        self._seeded = None
        self.put_back_values(state)
        if self._rng is not None:
            rng.restore(self._rng)
        else:  # a new rank: its draws depend on the seed, the step and the rank
            rng.seed_all(rng.derived(self._seed, self.step, self._rank))

    def draws_anew(self) -> bool:
        """Whether random numbers were drawn although the generators were not restored."""
        if self._seeded is None:
            return False
        now = rng.digests()
        return any(now[name] != seeded for name, seeded in self._seeded.items())

    def overriding(
        self, params: Mapping[str, Any], tracked: Mapping[str, Tracked | TrackedFiles]
    ) -> list[tuple[str, Any]]:
        """The parameters that have changed since, and their old values, which a tracked optimizer still has."""
        return [(name, old) for name, old in self._changed(params) if has_setting(tracked, name, old)]

    def not_in(self, tracked: Mapping[str, Tracked | TrackedFiles]) -> list[str]:
        """What the checkpoint contains and nothing has requested."""
        return sorted(self.names() - set(tracked))

    def _load(self, entry: Tracked | TrackedFiles) -> None:
        same_size = self._saved_world == self._world
        if isinstance(entry, TrackedFiles):
            if not same_size and not entry.resharded:
                remedy = "It does not load what another number of ranks saved: keep the number of slots"
                raise ValueError(self._refusal(entry.name, "saved in shards of its own", remedy))
            entry.load(checkpoint.files_of(self._folder, entry.name))
            return
        key = of_object(entry.name)
        if same_size:
            entry.set_state(self._part(0 if key in self._as_rank_0 else self._rank)["tracked"][entry.name])
        elif key in self._everywhere and (entry.shared or not (entry.draws and self._saved_world == 1)):
            entry.set_state(self._part(0)["tracked"][entry.name])
        elif entry.set_rank_states is not None:
            states = [self._of_rank(rank, entry.name) for rank in range(self._saved_world)]
            entry.set_rank_states(states, rank=self._rank, world_size=self._world)
        else:
            differs = (
                "which does not determine what further ranks draw"
                if entry.draws
                else "each with a state of its own"
            )
            remedy = (
                f"Give {entry.name} a method load_rank_states(states, *, rank, world_size) that redistributes "
                f"them, say trial.shared({entry.name}) where it is the same on all ranks, or keep the number of slots"
            )
            raise ValueError(self._refusal(entry.name, differs, remedy))

    def _refusal(self, name: str, how: str, remedy: str) -> str:
        return (
            f"t.track({name}=...): the checkpoint was taken on {_ranks(self._saved_world)}, {how}, and this trial has "
            f"{self._world}. {remedy}"
        )

    def _own_values(self) -> dict[str, Any]:
        """`t.state`; raises `ValueError` for a value that a different number of ranks would have to divide."""
        if self._saved_world == self._world:
            own: dict[str, Any] = self._part(self._rank)["state"]
            if not any(key.startswith("state/") for key in self._as_rank_0):
                return dict(own)
            first = self._part(0)["state"]
            return {name: one for name, one in first.items() if of_value(name) in self._as_rank_0} | own
        first = self._part(0)["state"]
        everyone = {name: one for name, one in first.items() if of_value(name) in self._everywhere}
        for rank in range(self._saved_world):
            for name in self._part(rank)["state"]:
                if of_value(name) not in self._everywhere:
                    raise ValueError(
                        f"t.state[{name!r}] is not the same on the {self._saved_world} ranks that saved the "
                        f"checkpoint, and this trial has {self._world}: keep it in a tracked object that says "
                        "how it is divided (load_rank_states), or keep the number of slots"
                    )
        return everyone

    def _own_generators(self) -> rng.State | None:
        """The generators' state; None for a new rank, unless the earlier ranks drew alike. A single earlier rank
        does not show that.
        """
        if self._rank >= self._saved_world == 1:
            return None
        if RNG in self._everywhere or RNG in self._as_rank_0:
            return self._part(0)[RNG]  # type: ignore[no-any-return]  # a part is plain values
        return self._part(self._rank)[RNG] if self._rank < self._saved_world else None

    def names(self) -> set[str]:
        """The tracked objects that this rank may request; in a gang of a different size, those that any rank
        saved.
        """
        if self._saved_world != self._world:
            return {name for rank in range(self._saved_world) for name in self._part(rank)["tracked"]} | set(
                self._files
            )
        taken = {key.removeprefix(of_object("")) for key in self._as_rank_0 if key.startswith(of_object(""))}
        return taken | set(self._part(self._rank)["tracked"]) | set(self._files)

    def _of_rank(self, rank: int, name: str) -> Any:
        part = self._part(rank)
        return (
            self._part(0)["tracked"][name] if of_object(name) in part["as_rank_0"] else part["tracked"][name]
        )

    def _part(self, rank: int) -> dict[str, Any]:
        if rank not in self._parts:
            self._parts[rank] = checkpoint.read_to_continue(self._folder, rank)
        return self._parts[rank]

    def _changed(self, params: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(name, old) for name, old in self._params.items() if name in params and params[name] != old]


def _ranks(count: int) -> str:
    return "1 rank" if count == 1 else f"{count} ranks"
