"""The checkpoint that a process continues from, and the order in which it is given back.

Objects get their state when they are tracked; plain values and the random generators are put back at that
time too, and once more when the loop begins, so that whatever a script initialises or seeds in between does
no harm.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from headrace.trial import checkpoint, rng
from headrace.trial.tracking import Tracked


class Restore:
    """One checkpoint, read."""

    def __init__(self, folder: Path, rank: int = 0) -> None:
        started = time.monotonic()
        document = checkpoint.read(folder)
        # The step that was reported with it, and the one that the loop had come to: a script may report in other units.
        self.step: int = document["step"]
        self.loop_step: int = document["loop_step"]
        self._tracked: dict[str, Any] = document["tracked"]
        self._state: dict[str, Any] = document["state"]
        self._params: dict[str, Any] = document.get("params", {})
        self._rng: rng.State = document["rng"]
        if rank and any(folder.glob(f"rank-{rank}.*")):  # else the gang has grown: ranks begin alike
            self._rng = checkpoint.read(folder, f"rank-{rank}")["rng"]
        self.read_time_s = time.monotonic() - started

    def give(self, entry: Tracked, params: Mapping[str, Any]) -> None:
        """Loads the object; raises `ValueError` where the checkpoint does not know it, or where it does not fit and was
        trained with other parameters than `params`."""
        if entry.name not in self._tracked:
            raise ValueError(
                f"t.track({entry.name}=...): the checkpoint holds {', '.join(sorted(self._tracked)) or 'nothing'}, "
                f"but no {entry.name!r}; a trial resumes with the same script that it was paused with"
            )
        started = time.monotonic()
        try:
            entry.give(self._tracked[entry.name])
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
        """The plain values into `state`; the generators stay, so that the script builds (a split of its data, say) with
        the same random numbers as the first time."""
        state.update(self._state)

    def put_back(self, state: dict[str, Any]) -> None:
        """The plain values into `state`, and the global generators."""
        self.put_back_values(state)
        rng.restore(self._rng)

    def overriding(self, params: Mapping[str, Any], tracked: Mapping[str, Tracked]) -> list[tuple[str, Any]]:
        """The parameters that were changed since, and their old values, which a tracked optimizer still has."""
        groups = [group for one in tracked.values() for group in getattr(one.target, "param_groups", ())]
        return [
            (name, old)
            for name, old in self._changed(params)
            if any(group.get(name) == old for group in groups)
        ]

    def _changed(self, params: Mapping[str, Any]) -> list[tuple[str, Any]]:
        return [(name, old) for name, old in self._params.items() if name in params and params[name] != old]

    def not_in(self, tracked: dict[str, Tracked]) -> list[str]:
        """What the checkpoint holds and nobody has asked for."""
        return sorted(set(self._tracked) - set(tracked))
