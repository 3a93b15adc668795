"""A member's state as the state dicts of a plain model and of torch's own optimizer, and back.

Reading it does not require Hydro: use `model.load_state_dict`, `optimizer.load_state_dict`,
`GradScaler.load_state_dict`. It holds only tensors and plain values. Dropout needs only `settings` and `seen`.
"""

from collections import OrderedDict
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from itertools import chain, count, islice
from typing import Any

import torch
from torch import Tensor, nn

from headrace_torch.hydro.fuse import settings
from headrace_torch.hydro.fuse.errors import MemberError
from headrace_torch.hydro.fuse.member import Member, OptimizerName
from headrace_torch.hydro.fuse.states import MOMENTS, MemberStates, Slot
from headrace_torch.hydro.parametrize.parametrization import OPTIMIZERS, Parametrization

State = dict[str, Any]


def plain_optimizer(
    model: nn.Module, parametrization: Parametrization, member: Member, step: int
) -> torch.optim.Optimizer:
    """Makes the torch optimizer that a member would have alone, with the rate of its next step.

    `initial_lr` of each group is the member's own rate, so that a torch scheduler can continue with `last_epoch`.
    """
    groups, common = _settings(model, parametrization, member, step)
    optimizer: torch.optim.Optimizer = OPTIMIZERS[parametrization.optimizer](groups, **common)
    return optimizer


def read(
    states: MemberStates,
    position: int,
    template: nn.Module,
    parametrization: Parametrization,
    extra: Mapping[str, Any],
    remembered: Mapping[str, Any],
) -> State:
    """Returns a member's state; every tensor is a copy.

    Returns:
        `model`: a state dict of the user's model. `optimizer`: one of torch's. `scaler`: one of
        `torch.amp.GradScaler`, if the member has one. `step`: optimizer steps taken. `seen`: batches seen. `settings`:
        the member's hyperparameters, as `Group.add` takes them. `remembered`: what it keeps in Python, in plain values
        (`carrying`). `buffers`: those that a state dict leaves out, if any.
    """
    slot = states.slots[position]
    own = {name: view.clone() for name, view in states.layout.of_row(states.rows[position]).items()}
    held = {**own, **{name: value[position].clone() for name, value in states.buffers.items()}}
    model: OrderedDict[str, Any] = OrderedDict()
    names = {id(one): name for name, one in (*template.named_parameters(), *template.named_buffers())}
    for name, value in template.state_dict(keep_vars=True).items():
        model[name] = (
            held[names[id(value)]]
            if isinstance(value, Tensor) and id(value) in names
            else extra.get(name, value)
        )
    packed: dict[str, Any] = {
        "state": {},
        "param_groups": _packed(template, parametrization, slot.member, slot.step),
    }
    if slot.step > 0:
        moments = {
            name: states.layout.of_row(one[position])
            for name, one in states.moments.items()
            if _kept(name, slot)
        }
        for index, name in enumerate(chain(*parametrization.grouped(template))):
            taken = slot.step - slot.skipped.get(name, 0)
            if name not in own or not taken:  # torch keeps nothing for a parameter that never had a gradient
                continue
            entry: dict[str, Tensor] = {key: views[name].clone() for key, views in moments.items()}
            if parametrization.optimizer != "sgd":
                entry["step"] = torch.tensor(float(taken))
            if entry:
                packed["state"][index] = entry
    state: State = {
        "model": model,
        "optimizer": packed,
        "step": slot.step,
        "seen": slot.seen,
        "settings": settings.plain(slot.member),
        "remembered": dict(remembered),
    }
    if left_out := {name: held[name] for name in states.buffers if name not in model}:
        state["buffers"] = left_out
    if slot.member.scaler is not None:
        state["scaler"] = {
            "scale": slot.scale,
            "growth_factor": slot.member.scaler.growth_factor,
            "backoff_factor": slot.member.scaler.backoff_factor,
            "growth_interval": slot.member.scaler.growth_interval,
            "_growth_tracker": slot.good_steps,
        }
    return state


def _settings(
    model: nn.Module, parametrization: Parametrization, member: Member, step: int
) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """Returns the groups of a member's torch optimizer, and the settings that are common to all of them."""
    now = member.setting(step)
    name: OptimizerName = parametrization.optimizer  # type: ignore[assignment]  # its table has the same three
    common: dict[str, Any] = {"lr": now.lr}
    if name == "sgd":
        momentum = member.momentum if now.momentum is None or member.momentum == 0 else now.momentum
        common |= {"momentum": momentum, "dampening": member.dampening, "nesterov": member.nesterov}
    else:
        beta1 = member.betas[0] if now.momentum is None else now.momentum
        common |= {"betas": (beta1, member.betas[1])}
    groups = parametrization.groups(model, lr=now.lr, weight_decay=member.decay(name), eps=member.eps)
    for group, initial in zip(groups, parametrization.groups(model, lr=member.lr), strict=True):
        group["initial_lr"] = initial["lr"]
    return groups, common


def _packed(
    model: nn.Module, parametrization: Parametrization, member: Member, step: int
) -> list[dict[str, Any]]:
    """Returns `plain_optimizer(...).state_dict()["param_groups"]` without making the optimizer."""
    groups, common = _settings(model, parametrization, member, step)
    common, numbers = {**_defaults(parametrization.optimizer), **common}, count()
    return [{**common, **group, "params": list(islice(numbers, len(group["params"])))} for group in groups]


@cache
def _defaults(optimizer: str) -> Mapping[str, Any]:
    """Returns the default settings of a torch optimizer, read once from one over a single number."""
    settings: dict[str, Any] = OPTIMIZERS[optimizer]([torch.zeros(1)]).defaults
    return settings


def _kept(moment: str, slot: Slot) -> bool:
    """SGD without momentum keeps no buffer, although the group's matrix has its row."""
    return moment != "momentum_buffer" or slot.member.momentum > 0


def write(
    states: MemberStates,
    position: int,
    state: Mapping[str, Any],
    template: nn.Module,
    parametrization: Parametrization,
) -> None:
    """Puts a member's state into a row, in place.

    Args:
        states: the row's tensors and slot are overwritten.
        position: the row's position.
        state: from `read`, or with the same keys from a plain run; without `optimizer` the moments stay zero.
            Without `step`, Adam's own count is used. SGD has no count, so its state needs `step`.
        template: the user's model.
        parametrization: the group's.

    Raises:
        MemberError: the state is of another model or optimizer, or does not give its step.
    """
    slot = states.slots[position]
    if not isinstance(remembered := state.get("remembered", {}), Mapping):
        raise MemberError(
            f"state['remembered'] is a {type(remembered).__name__}, not a mapping: pass what member_state returned",
            member=slot.id,
        )
    held: Mapping[str, Tensor] = {**state.get("buffers", {}), **state["model"]}
    row = states.layout.of_row(states.rows[position])
    for name, target in (*row.items(), *((key, one[position]) for key, one in states.buffers.items())):
        if name not in held and name in row:
            raise MemberError(f"the state has no {name}: it is of another model", member=slot.id)
        if name in held:
            _copy(name, held[name], target, slot)
    step = _step(state, slot, counts=parametrization.optimizer != "sgd")
    skipped: dict[str, int] = {}
    if "optimizer" in state:
        kept: Mapping[int, Mapping[str, Tensor]] = state["optimizer"]["state"]
        stateless = parametrization.optimizer == "sgd" and slot.member.momentum == 0
        for index, name in enumerate(chain(*parametrization.grouped(template))):
            if name in row and (missed := step - _taken(kept.get(index), step, stateless=stateless)):
                skipped[name] = missed
            for moment in MOMENTS[parametrization.optimizer]:
                value = kept.get(index, {}).get(moment)
                if value is not None and moment in states.moments:
                    target = states.layout.of_row(states.moments[moment][position])[name]
                    _copy(f"{moment} of {name}", value, target, slot)
    scaler = state.get("scaler") or {}
    states.slots[position] = replace(
        slot,
        step=step,
        seen=int(state.get("seen", step)),
        scale=float(scaler.get("scale", slot.scale)),
        good_steps=int(scaler.get("_growth_tracker", slot.good_steps)),
        skipped=skipped,
    )


def fill(module: nn.Module, states: MemberStates, position: int) -> nn.Module:
    """Copies a member's parameters and buffers into a separate module, and returns it."""
    rows = states.layout.of_row(states.rows[position])
    held = {name: value[position] for name, value in states.buffers.items()}
    with torch.no_grad():
        for name, one in (*module.named_parameters(), *module.named_buffers()):
            one.copy_(rows[name] if name in rows else held[name])
    return module


def _copy(name: str, value: Tensor, target: Tensor, slot: Slot) -> None:
    if value.shape != target.shape:
        raise MemberError(
            f"{name} has shape {tuple(value.shape)} in the state, not {tuple(target.shape)}", member=slot.id
        )
    target.copy_(value)


def _step(state: Mapping[str, Any], slot: Slot, *, counts: bool) -> int:
    """The optimizer steps behind a state: the number that it gives, else the optimizer's count, if it counts."""
    if "step" in state:
        return int(state["step"])
    if "optimizer" not in state:
        return 0
    entries = state["optimizer"]["state"].values()
    told = [int(one["step"]) for one in entries if "step" in one]
    # Without momentum, the state of an optimizer that has stepped is the same as that of one that has not.
    if not counts or (entries and not told):
        raise MemberError(
            "the state does not contain its step, and SGD does not count: add state['step'], the optimizer steps "
            "taken. A trial's checkpoint has it if the optimizer was tracked by this name, t.track(optimizer=...)",
            member=slot.id,
        )
    return max(told, default=0)


def _taken(entry: Mapping[str, Tensor] | None, step: int, *, stateless: bool) -> int:
    """How many of a member's steps a parameter took; SGD counts none, and without momentum keeps nothing."""
    if entry is None:
        return step if stateless else 0
    return int(entry["step"]) if "step" in entry else step
