"""Members' Python state on its way into a group and out of it.

arrive    a member joins with a state: kept until its module and the step's code can receive it
begun     a separate member has its own module: it gets the member's extra state and attributes
bring     a step has started: `Memory` gets what members remember outside their modules
take      what a state must hold; what it cannot hold raises an error if it counts, else one warning
onto      the same for a plain model
"""

import copy
import warnings
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import nn

from headrace_torch.hydro.fuse.carrying import Names, Remembered, put, taken
from headrace_torch.hydro.fuse.errors import FuseError, MemberError
from headrace_torch.hydro.fuse.objects import difference
from headrace_torch.hydro.fuse.places import Change, Kind
from headrace_torch.hydro.fuse.reach import Owned, State, read, refresh, shared
from headrace_torch.hydro.fuse.remembering import Memory

EXTRA = "_extra_state"
FLAG = "requires_grad "


@dataclass(slots=True)
class _Arrived:
    """What a member arrived with and nothing has received yet: for its module, and for all other code."""

    extra: Mapping[str, Any]
    model: Remembered
    code: Remembered


@dataclass(slots=True)
class _Own:
    """A separate member's module, and its starting content."""

    module: nn.Module
    began: State
    names: Names
    flags: Mapping[str, bool]  # which parameters required a gradient

    def put(self, remembered: Mapping[str, Any]) -> Remembered:
        """Applies what was taken to the module; returns what has no place in it."""
        rest = put(self.began, self.names, remembered, next(self.module.parameters()).device)
        for name, one in self.module.named_parameters():
            if (entry := rest.pop(FLAG + name, None)) is not None:
                one.requires_grad_(entry["value"])
        return rest

    def changed_flags(self) -> Remembered:
        """Whether a parameter requires a gradient, if a step has changed that."""
        return {
            FLAG + name: {"value": one.requires_grad}
            for name, one in self.module.named_parameters()
            if one.requires_grad != self.flags[name]
        }


@dataclass(slots=True)
class Recall:
    """What members arrived with, and the starting contents of their modules.

    Attributes:
        template: the group's model.
        owned: the tensors of members' modules.
        memory: what members remember outside their own modules; None if a call changes nothing.
    """

    template: nn.Module
    owned: Owned
    memory: Memory | None = None
    _arrived: dict[int, _Arrived] = field(default_factory=dict)
    _own: dict[int, _Own] = field(default_factory=dict)
    _told: set[str] = field(default_factory=set)
    _common: frozenset[int] | None = None

    @property
    def waiting(self) -> str:
        """What some member remembers outside its module, and nothing has received yet; empty if nothing."""
        return next((name for one in self._arrived.values() for name in one.code), "")

    def arrive(self, number: int, state: Mapping[str, Any]) -> None:
        """A member joins with a state."""
        extra = {name: value for name, value in state["model"].items() if name.endswith(EXTRA)}
        remembered = state.get("remembered") or {}
        names = self._read(self.template).names if remembered else Names()
        of_model = {
            name: one for name, one in remembered.items() if names.places(name) or name.startswith(FLAG)
        }
        of_code = {name: one for name, one in remembered.items() if name not in of_model}
        if extra or remembered:
            self._arrived[number] = _Arrived(extra, of_model, of_code)

    def keep(self, ids: Iterable[int]) -> None:
        """Forgets all other members."""
        here = set(ids)
        self._arrived = {number: one for number, one in self._arrived.items() if number in here}
        self._own = {number: one for number, one in self._own.items() if number in here}

    def begun(self, number: int, module: nn.Module) -> None:
        """A member now has its own module."""
        self.owned.add(module)
        self._own[number] = own = self._read(module)
        if came := self._arrived.get(number):
            _load_extra(number, module, came.extra)
            came.model = own.put(came.model)
            came.extra = {}

    def ended(self) -> None:
        """Separate modules are discarded; new ones will start where those were."""
        for number, own in self._own.items():
            came = self._arrived.setdefault(number, _Arrived({}, {}, {}))
            came.model |= self._taken(own)[0]
            came.extra = extra_of(own.module)
        self._own = {}

    def bring(self, module: nn.Module | None) -> None:
        """A step has started; `module` is that of a fused pass, if it is part of what members remember."""
        assert self.memory is not None
        for number, came in self._arrived.items():
            entries = {**came.code, **(came.model if module is not None else {})}
            extra = came.extra if module is not None else {}
            if not entries and not extra:
                continue
            code = self.memory.bring(
                number,
                entries,
                lambda extra=extra, number=number: _load_extra(number, module, extra),  # type: ignore[misc]  # bound to this turn's
                _device(self.template),
            )
            if module is not None:
                came.model, came.extra = {}, {}
            came.code = code
            for name in code:
                if self.memory.knows_loss(name):
                    self._tell(
                        f"member {number} remembers {name}, which this program does not have: it stays in its state"
                    )

    def differs(self, ids: Iterable[int], own: Any) -> str:
        """Names an attribute with which a member arrived and that differs from the group's model; empty if there
        is none."""
        for number in ids:
            came = self._arrived.get(number)
            if came is not None and (came.extra or came.model):
                model = own(number)
                self._onto(number, model, came.extra, came.model)
                if found := difference(self.template, model):
                    return f"attribute {found.path} differs between members"
        return ""

    def remembered(self, number: int) -> Remembered:
        """What a member's state must hold.

        Raises:
            FuseError: names what no state can hold although it counts.
        """
        found, lost = self._found(number)
        for one in lost:
            if one.kind is not Kind.RECORD:
                raise FuseError(
                    f"a member's state cannot hold {one.path}, which a step changes: keep numbers, texts, tensors, or "
                    "lists and dicts of them, such as self.calls += 1; a layer may write get_extra_state and "
                    "set_extra_state"
                )
            self._tell(
                f"a member's state does not hold {one.path}, an object that a step made: a member that "
                "returns starts without it"
            )
        return found

    def module(self, number: int) -> nn.Module | None:
        """A separate member's own module."""
        own = self._own.get(number)
        return None if own is None else own.module

    def onto(self, number: int, model: nn.Module) -> None:
        """Gives a plain model a member's extra state and attributes."""
        live, came = self.module(number), self._arrived.get(number)
        extra = extra_of(live) if live is not None else came.extra if came is not None else {}
        remembered, _ = self._found(number)
        if extra or remembered:
            self._onto(number, model, extra, remembered)

    def _onto(
        self, number: int, model: nn.Module, extra: Mapping[str, Any], remembered: Mapping[str, Any]
    ) -> None:
        read_now = self._read(model)
        _load_extra(number, model, extra)
        read_now.put(remembered)

    def _found(self, number: int) -> tuple[Remembered, list[Change]]:
        found: Remembered = {}
        lost: list[Change] = []
        if came := self._arrived.get(number):
            found |= {**came.model, **came.code}
        if self.memory is not None:
            more, lost = self.memory.remembered(number)
            found |= more
        if own := self._own.get(number):
            more, others = self._taken(own)
            found |= more
            lost += others
        return found, lost

    def _taken(self, own: _Own) -> tuple[Remembered, list[Change]]:
        now = refresh(own.began, [("", own.module)], self.owned, self._known())
        found, lost = taken(own.began, now, own.names)
        found |= own.changed_flags()
        # A module with an extra state decides itself what is kept of it.
        told = [name.removesuffix(EXTRA).removesuffix(".") for name in extra_names(own.module)]
        return found, [one for one in lost if not any(_is_within(one.path, name) for name in told)]

    def _read(self, module: nn.Module) -> _Own:
        owned = Owned()
        owned.add(module)
        names = Names()
        began = read([("", module)], {}, owned, self._known())
        names.add(began)
        flags = {name: one.requires_grad for name, one in module.named_parameters()}
        return _Own(module, began, names, flags)

    def _known(self) -> frozenset[int]:
        if self._common is None:
            self._common = frozenset(id(one) for _, one in shared(self.template))
        return self._common

    def _tell(self, what: str) -> None:
        if what not in self._told:
            self._told.add(what)
            warnings.warn(what, stacklevel=4)


def extra_of(module: nn.Module) -> dict[str, Any]:
    """The extra state of a module and of its layers, by the names of a state dict."""
    layers = dict(module.named_modules())
    return {
        name: copy.deepcopy(layers[name.removesuffix(EXTRA).removesuffix(".")].get_extra_state())
        for name in extra_names(module)
    }


def extra_names(module: nn.Module) -> list[str]:
    """The names of extra states in a module's state dict."""
    plain = nn.Module.get_extra_state
    return [
        f"{name}.{EXTRA}" if name else EXTRA
        for name, one in module.named_modules()
        if type(one).get_extra_state is not plain
    ]


def _load_extra(number: int, module: nn.Module | None, extra: Mapping[str, Any]) -> None:
    if module is None or not extra:
        return
    layers = dict(module.named_modules())
    for name, value in extra.items():
        layer = layers.get(name.removesuffix(EXTRA).removesuffix("."))
        if layer is None or type(layer).set_extra_state is nn.Module.set_extra_state:
            continue
        try:
            layer.set_extra_state(copy.deepcopy(value))
        except Exception as error:
            raise MemberError(
                f"member {number}: set_extra_state of {name} raised {type(error).__name__}: {error}",
                member=number,
            ) from error


def _device(module: nn.Module) -> torch.device:
    return next(module.parameters()).device


def _is_within(path: str, layer: str) -> bool:
    return not layer or path == layer or path.startswith((f"{layer}.", f"{layer}["))
