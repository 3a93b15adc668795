"""Where members' models come from: a surrogate, a module, or a factory."""

import inspect
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from headrace_torch.hydro.fuse.errors import FuseError, MemberError, StaticShapeError
from headrace_torch.hydro.fuse.layout import check_same
from headrace_torch.hydro.fuse.member import Member, OptimizerName
from headrace_torch.hydro.fuse.objects import difference
from headrace_torch.hydro.fuse.obstacles import refuse
from headrace_torch.hydro.fuse.twin import hooked, twin
from headrace_torch.hydro.parametrize.parametrization import Parametrization, identity
from headrace_torch.hydro.shrink.surrogate import Surrogate

Source = Surrogate | nn.Module | Callable[..., nn.Module]


@dataclass(slots=True)
class Models:
    """Makes members' models.

    Attributes:
        source: the user's.
        differ: how members' models differ in Python attributes, or empty.
    """

    source: Source
    differ: str = ""

    def make(
        self, members: Sequence[Member], numbers: Sequence[int], template: nn.Module | None
    ) -> list[nn.Module]:
        """Makes a model for each member; members with equal seeds and arguments share one.

        A surrogate and a factory are called once per (seed, model), with torch's generator seeded and restored;
        with a module, every member starts from it.

        Args:
            members: the members to make models for.
            numbers: their ids, for messages.
            template: a model whose shapes all must share; None takes the first one's.

        Raises:
            StaticShapeError: shapes differ, or tensors that are not registered; names the layer.
            MemberError: `model` arguments were given for something that takes none.
            FuseError: a model that no engine can train.
        """
        made: dict[Any, nn.Module] = {}
        models = []
        for number, member in zip(numbers, members, strict=True):
            key = (member.seed, tuple(sorted((member.model or {}).items(), key=lambda item: item[0])))
            if key not in made:
                made[key] = one = self._one(member, number)
                refuse(one)
                alike = template or next(iter(made.values()))
                check_same(alike, one, number)
                self._compare(alike, one, number)
            models.append(made[key])
        return models

    def refuse_arguments(self) -> None:
        """Rejects a factory that needs arguments, if no member gives them.

        Raises:
            FuseError: names them.
        """
        if isinstance(self.source, Surrogate | nn.Module):
            return
        try:
            inspect.signature(self.source).bind()
        except TypeError as error:
            raise FuseError(
                f"a group without members calls the factory without arguments, and: {error}; bind them with "
                "functools.partial"
            ) from None
        except ValueError:  # it has no readable signature
            return

    def own(self, member: Member, template: nn.Module) -> nn.Module:
        """Makes a member's own module, on the template's device; its registered tensors' values do not matter."""
        if isinstance(self.source, nn.Module) or not (self.differ or hooked(template)):
            return twin(template)
        return self._one(member, 0).to(next(template.parameters()).device)

    def _compare(self, template: nn.Module, model: nn.Module, number: int) -> None:
        found = None if isinstance(self.source, nn.Module) else difference(template, model)
        if found is None:
            return
        if found.tensor:
            raise StaticShapeError(
                f"{found.path} is a tensor that the model has not registered, and member {number} has another one "
                "than member 0: a group keeps only what is registered; use register_buffer or nn.Parameter, or for "
                "layers nn.ModuleList",
                member=number,
            )
        self.differ = self.differ or f"attribute {found.path} differs between members 0 and {number}"

    def _one(self, member: Member, number: int) -> nn.Module:
        if member.model and (isinstance(self.source, Surrogate | nn.Module)):
            raise MemberError(
                f"member {number}: model={dict(member.model)} are arguments for a factory, and fuse was given a "
                f"{type(self.source).__name__}: pass the factory",
                member=number,
            )
        if isinstance(self.source, Surrogate):
            return self.source.build(member.seed)
        if isinstance(self.source, nn.Module):
            return self.source
        with torch.random.fork_rng():
            torch.manual_seed(member.seed)
            return self.source(**(member.model or {}))

    def parametrization(self, template: nn.Module, optimizer: OptimizerName) -> Parametrization:
        """Returns the surrogate's multipliers, or those of a model that is its own base."""
        if isinstance(self.source, Surrogate):
            return self.source.parametrization(optimizer)
        return identity(template, optimizer)


def template_of(model: nn.Module, device: torch.device | None) -> nn.Module:
    """Returns a copy to keep, on the group's device."""
    copied = twin(model)
    return copied if device is None else copied.to(device)
