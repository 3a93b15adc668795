"""Objects that all members of a bundle share: a position in the data, a generator.

Each member's checkpoint has their state. The first member that continues from a checkpoint restores it. If the
objects are in a different state when a member joins, it gets a warning, because it does not train as it would
alone.
"""

import copy
import functools
from collections.abc import Mapping
from typing import Any

from headrace.trial.bundle_member import PLAIN, Member
from headrace.trial.codec import encode, try_encode
from headrace.trial.digests import digest
from headrace.trial.tracking import Tracked, tracked


class Shared:
    """The shared objects of one bundle."""

    def __init__(self, objects: Mapping[str, Any], before: Mapping[str, Any] | None = None) -> None:
        """`before` has the states to continue from, if the program starts again in its process."""
        self.entries: dict[str, Tracked] = {}
        for name, target in objects.items():
            if name in PLAIN:
                raise ValueError(
                    f"bundle.track({name}=...): a member's own {name} has this name; use another"
                )
            entry = tracked(name, target)
            if not isinstance(entry, Tracked):
                raise TypeError(f"bundle.track({name}=...): what saves itself on all ranks cannot be shared")
            try_encode(entry.get_state(), name)
            self.entries[name] = entry
        self._fresh = {name: _digest(entry.get_state(), name) for name, entry in self.entries.items()}
        self._given = bool(before)
        for name, state in (before or {}).items():
            if name in self.entries:
                self.entries[name].set_state(state)

    def states(self) -> dict[str, Any]:
        """A copy of their states."""
        return {name: copy.deepcopy(entry.get_state()) for name, entry in self.entries.items()}

    def meet(self, member: Member) -> None:
        """A member joins: restore the states in the first checkpoint; warn a later member if they differ."""
        brought: dict[str, Any] = {}
        if member.restore is not None:
            for name in self.entries.keys() & member.restore.names():
                asked = Tracked(
                    name=name,
                    target=None,
                    get_state=dict,
                    set_state=functools.partial(brought.__setitem__, name),
                )
                member.restore.give(asked, member.params)
        for name, entry in self.entries.items():
            if name in brought and not self._given:
                entry.set_state(brought[name])
                continue
            own = _digest(brought[name], name) if name in brought else self._fresh[name]
            if own != _digest(entry.get_state(), name):
                member.to_tell.append(
                    f"{name} is shared by the bundle, and is not at this trial's own position: the trial sees "
                    "different data than it would alone. Let data follow each member's own steps, bundle.member_steps"
                )
        self._given = True


def _digest(state: Any, name: str) -> str:
    return digest(encode(state, name, for_json=False))
