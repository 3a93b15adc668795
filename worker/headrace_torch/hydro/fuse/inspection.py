"""Observes one plain step of the user's model: what fusion must know, and names for what goes wrong.

Runs on a copy of member 0's module with its tensors, and leaves no trace: buffers and generators are as they were
before.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from torch import Tensor, nn
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.nn import functional
from torch.nn.modules import module as _module
from torch.nn.modules.batchnorm import _BatchNorm
from torch.overrides import TorchFunctionMode
from torch.utils._pytree import tree_leaves

from headrace_torch.hydro.fuse.dropout import Masks
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.stacked import NO_HOOKS
from headrace_torch.hydro.fuse.engines.work import Traits, Work, copied
from headrace_torch.hydro.fuse.errors import FuseError
from headrace_torch.hydro.fuse.lanes import note
from headrace_torch.hydro.fuse.layout import check_frozen, check_placed, check_registered, placed
from headrace_torch.hydro.fuse.objects import alias, difference
from headrace_torch.hydro.fuse.obstacles import Need
from headrace_torch.hydro.fuse.ops import DROPOUTS, MemberOps
from headrace_torch.hydro.fuse.places import Kind
from headrace_torch.hydro.fuse.remembering import advanced
from headrace_torch.hydro.fuse.surroundings import Surroundings, python_generators, roots_of, untouched
from headrace_torch.hydro.fuse.twin import hooked, twin


class Watch(TorchFunctionMode):
    """Records the last op, the running layer, and whether there was dropout."""

    def __init__(self, model: nn.Module) -> None:
        """Names the model's layers."""
        super().__init__()
        self._names = {id(one): name or "(model)" for name, one in model.named_modules()}
        self._running: list[nn.Module] = []
        self.op = ""
        self.dropout = False

    def __torch_function__(
        self,
        func: Callable[..., Any],
        types: Sequence[type],
        args: tuple[Any, ...] = (),
        kwargs: Mapping[str, Any] | None = None,
    ) -> Any:
        """Records the call and passes it on."""
        named = kwargs or {}
        name = getattr(func, "__name__", str(func))
        if name != "__get__":
            self.op = name
        if func in DROPOUTS:
            training = args[2] if len(args) > 2 else named.get("training", named.get("train", True))
            self.dropout = self.dropout or bool(training)
        elif func is functional.scaled_dot_product_attention:
            self.dropout = self.dropout or (args[4] if len(args) > 4 else named.get("dropout_p", 0.0)) > 0
        elif func is functional.multi_head_attention_forward:
            training = args[13] if len(args) > 13 else named.get("training", True)
            self.dropout = self.dropout or (training and (args[10] if len(args) > 10 else 0.0) > 0)
        out = func(*args, **named)
        for one in out if isinstance(out, tuple | list) else (out,):
            note(one)
        return out

    @property
    def layer(self) -> str:
        """Returns the layer that is running, or ran when an error was raised: `name (Type)`."""
        if not self._running:
            return "the loss"
        one = self._running[-1]
        return f"layer {self._names.get(id(one), '?')} ({type(one).__name__})"

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Tracks the modules that run in this block; after an error, `layer` says which one raised it."""
        before = _module.register_module_forward_pre_hook(lambda one, _: self._running.append(one))
        after = _module.register_module_forward_hook(lambda _one, _args, _out: self._leave())
        try:
            yield
        finally:
            before.remove()
            after.remove()

    def _leave(self) -> None:
        if self._running:
            self._running.pop()


def inspect(model: nn.Module, work: Work, *, differ: str = "") -> Traits:
    """Runs forward and backward up to three times.

    Args:
        model: has the tensors of some member; it is copied.
        work: the first step's work, for one member.
        differ: how members' modules differ in Python attributes, or empty.

    Raises:
        LossShapeError: the loss is not one number.
        FuseError: the loss depends on no parameter of the model that it receives.
        Exception: whatever the model itself raises.
    """
    device = next(model.parameters()).device
    roots = roots_of(work.loss_fn, model)
    surroundings = Surroundings(roots)
    with untouched(roots):
        try:
            with disable_saved_tensors_hooks(NO_HOOKS):
                trial = _Trial(model, work, device)
            recomputes = _has_checkpoint(trial.loss)
        except RuntimeError as error:
            if NO_HOOKS not in str(error):
                raise
            trial = _Trial(model, work, device)
            recomputes = True
        trial.check_tensors()
        if not trial.backward():
            raise FuseError(
                "the loss depends on no parameter of the model that it is given: compute it with its first argument"
            )
        if sparse := trial.sparse():
            raise FuseError(
                f"the gradient of parameter {sparse} is sparse, and a group keeps one dense row per member: use "
                "sparse=False"
            )
        check_frozen(trial.unfrozen())
        needs, counts = dict(_needs(model, trial, differ)), ""
        for change in surroundings.changes():
            if change.kind is Kind.ITERATOR:
                raise FuseError(advanced(change.path))
            needs.setdefault(Need.RECORD, f"a call changes {change.path}")
            counts = counts or (change.path if change.kind is Kind.NUMBER else "")
        surroundings.restore()
        if stray := difference(model, trial.model):
            counts = counts or (stray.path if stray.counts else "")
            changes = f"a step changes attribute {stray.path}"
            if not stray.advances and trial.same_as(_Trial(trial.model, work, device, like=model)):
                needs[Need.MEMORY] = changes
            else:
                needs.setdefault(Need.ATTRIBUTES, f"{changes}, and the next one computes something else")
    norms = [name for name, one in model.named_modules() if isinstance(one, _BatchNorm) and _uses_batch(one)]
    return Traits(
        mutable=trial.changed(),
        dropout=trial.watch.dropout and not recomputes,
        random=trial.drew or Need.DRAWS in needs or (trial.watch.dropout and recomputes),
        recomputes=recomputes,
        batch_norm=norms[0] if norms else "",
        needs=needs,
        counts=counts,
    )


def _needs(model: nn.Module, trial: "_Trial", differ: str) -> Iterator[tuple[Need, str]]:
    """What a member must have separately, except for attributes that a step changes."""
    if differ:
        yield Need.ATTRIBUTES, differ
    if found := hooked(model):
        yield Need.HOOKS, found
    if found := alias(model):
        yield Need.REFERENCES, found
    if found := trial.written():
        yield Need.PARAMETERS, f"the forward pass writes parameter {found}"
    if trial.wrote_batch():
        yield Need.BATCH, "the forward pass changes its batch in place"
    if trial.drew_in_python:
        yield Need.DRAWS, "the model draws from the generator of Python or numpy"


class _Trial:
    """A forward pass of a copy of the model, observed.

    Args:
        model: the model to copy, with its attributes.
        work: the work for one member.
        device: of the model.
        like: the model whose parameters and buffers the copy gets; None keeps its own.
    """

    def __init__(
        self, model: nn.Module, work: Work, device: torch.device, like: nn.Module | None = None
    ) -> None:
        self.model = twin(model)
        if like is not None:
            _take_tensors(self.model, like)
        self._given = {name: (one, one._version, one.clone()) for name, one in self.model.named_buffers()}
        self._frozen = {name for name, one in self.model.named_parameters() if not one.requires_grad}
        self._parameters = {name: one.detach().clone() for name, one in self.model.named_parameters()}
        self._placed = placed((*self.model.named_parameters(), *self.model.named_buffers()))
        self.watch = Watch(self.model)
        count = None if work.rows is None else work.rows[0]
        self._batch = copied(work.batch[0] if work.own else work.batch)
        self._pristine = copied(self._batch)
        masks = Masks([0], [None], device)
        with untouched():
            before, python = _generators(device), python_generators()
            with MemberOps(None, masks, grouped=False), self.watch, self.watch.layers():
                self.loss = checked(work.loss_fn(self.model, self._batch), count)
            self.drew = any(not torch.equal(a, b) for a, b in zip(before, _generators(device), strict=True))
            self.drew_in_python = python != python_generators()

    def backward(self) -> bool:
        """Runs the backward pass; returns whether any parameter got a gradient."""
        if self.loss.requires_grad:
            torch.autograd.backward(self.loss)
        return any(one.grad is not None for one in self.model.parameters())

    def check_tensors(self) -> None:
        """Rejects a step after which the model's tensors are not the same objects as before."""
        check_registered(self._given.keys() | self._parameters.keys(), self.model)
        check_placed(self._placed)

    def unfrozen(self) -> list[tuple[str, Tensor]]:
        """The parameters that did not require a gradient before."""
        every = self.model.named_parameters()
        return [(name, one) for name, one in every if name in self._frozen]

    def sparse(self) -> str:
        """Names a parameter with a sparse gradient; empty if none."""
        every = self.model.named_parameters()
        return next((name for name, one in every if one.grad is not None and one.grad.is_sparse), "")

    def same_as(self, other: "_Trial") -> bool:
        """Whether another run of the same step, without a backward pass so far, had the same loss and gradients."""
        other.backward()
        pairs = [(self.loss.detach(), other.loss.detach())]
        for one, two in zip(self.model.parameters(), other.model.parameters(), strict=True):
            if (one.grad is None) != (two.grad is None):
                return False
            if one.grad is not None and two.grad is not None:
                pairs.append((one.grad, two.grad))
        return all(same(a, b) for a, b in pairs)

    def changed(self) -> frozenset[str]:
        """Names the buffers that were changed in place, or reassigned."""
        return frozenset(
            name
            for name, one in self.model.named_buffers()
            if self._given[name][0] is not one
            or self._given[name][1] != one._version
            or not torch.equal(self._given[name][2], one)  # BatchNorm's kernel counts no version
        )

    def written(self) -> str:
        """Names a parameter that the forward or backward pass has changed; empty if none."""
        for name, one in self.model.named_parameters():
            if not torch.equal(self._parameters[name].nan_to_num(), one.detach().nan_to_num()):
                return name
        return ""

    def wrote_batch(self) -> bool:
        """Whether the batch has changed."""
        ours, theirs = tree_leaves(self._batch), tree_leaves(self._pristine)
        return len(ours) != len(theirs) or any(
            isinstance(a, Tensor) and isinstance(b, Tensor) and not same(a, b)
            for a, b in zip(ours, theirs, strict=True)
        )


def same(a: Tensor, b: Tensor) -> bool:
    """Whether two tensors are equal to the last bit; NaN equals NaN."""
    return (
        a.shape == b.shape
        and torch.equal(a.isnan(), b.isnan())
        and torch.equal(a.nan_to_num(), b.nan_to_num())
    )


@torch.no_grad()
def _take_tensors(module: nn.Module, like: nn.Module) -> None:
    given = {**dict(like.named_parameters()), **dict(like.named_buffers())}
    for name, one in (*module.named_parameters(), *module.named_buffers()):
        if one.shape == given[name].shape:
            one.copy_(given[name])
        one.grad = None


def _has_checkpoint(loss: Tensor) -> bool:
    """Whether the backward pass goes through torch's reentrant checkpointing."""
    waiting, seen = [loss.grad_fn], set()
    while waiting:
        node = waiting.pop()
        if node is None or node in seen:
            continue
        if "CheckpointFunction" in node.name():
            return True
        seen.add(node)
        waiting.extend(following for following, _ in node.next_functions)
    return False


def _uses_batch(one: _BatchNorm) -> bool:
    return one.training or one.running_mean is None


def _generators(device: torch.device) -> list[Tensor]:
    states = [torch.get_rng_state()]
    if device.type == "cuda":
        states.append(torch.cuda.get_rng_state(device))
    return states


def reason_of(error: BaseException, watch: Watch, traits: Traits) -> str:
    """Says in one line which op in which layer cannot be fused, and why."""
    text = str(error).strip()
    if NO_HOOKS in text or (traits.recomputes and "autograd.Function" in text):
        return f"activation checkpointing in {watch.layer}: the backward pass would run layers again without members"
    first = text.split("\n")[0].split(". ")[0][:200]
    op = watch.op or type(error).__name__
    return f"{op} in {watch.layer}: {first}"
