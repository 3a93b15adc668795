"""One plain step of the user's model, watched: what fusion must know, and names for what goes wrong.

Runs on a copy of member 0's module with its tensors, and leaves no trace: buffers and generators are as before.
"""

import copy
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

from headrace_torch.hydro.fuse.dropout import Masks
from headrace_torch.hydro.fuse.engines.loss import checked
from headrace_torch.hydro.fuse.engines.stacked import NO_HOOKS
from headrace_torch.hydro.fuse.engines.work import Traits, Work
from headrace_torch.hydro.fuse.ops import DROPOUTS, MemberOps


class Watch(TorchFunctionMode):
    """Remembers the last op, the layer that is running, and whether there was dropout."""

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
        """Notes and passes on."""
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
        return func(*args, **named)

    @property
    def layer(self) -> str:
        """Returns the layer that is running, or ran when an error was raised: `name (Type)`."""
        if not self._running:
            return "the loss"
        one = self._running[-1]
        return f"layer {self._names.get(id(one), '?')} ({type(one).__name__})"

    @contextmanager
    def layers(self) -> Iterator[None]:
        """Follows the modules that run in this block; after an error `layer` says which one raised it."""
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


def inspect(model: nn.Module, work: Work) -> Traits:
    """Runs forward and backward once.

    Args:
        model: with the tensors of some member; it is copied.
        work: the first step's, for one member.

    Raises:
        LossShapeError: the loss is not one number.
        Exception: whatever the model itself raises.
    """
    device = next(model.parameters()).device
    with torch.random.fork_rng():
        before = _generators(device)
        try:
            with disable_saved_tensors_hooks(NO_HOOKS):
                trial = _Trial(model, work, device)
            recomputes = _has_checkpoint(trial.loss)
        except RuntimeError as error:
            if NO_HOOKS not in str(error):
                raise
            trial = _Trial(model, work, device)
            recomputes = True
        if trial.loss.requires_grad:
            torch.autograd.backward(trial.loss)
        random = any(not torch.equal(a, b) for a, b in zip(before, _generators(device), strict=True))
    norms = [name for name, one in model.named_modules() if isinstance(one, _BatchNorm) and _uses_batch(one)]
    return Traits(
        mutable=trial.changed(),
        dropout=trial.watch.dropout and not recomputes,
        random=random or (trial.watch.dropout and recomputes),
        recomputes=recomputes,
        batch_norm=norms[0] if norms else "",
    )


class _Trial:
    """A forward pass of a copy of the model, under watch."""

    def __init__(self, model: nn.Module, work: Work, device: torch.device) -> None:
        self._model = copy.deepcopy(model)
        self._given = {name: (one, one._version, one.clone()) for name, one in self._model.named_buffers()}
        self.watch = Watch(self._model)
        count = None if work.rows is None else work.rows[0]
        batch = work.batch[0] if work.own else work.batch
        masks = Masks([0], [None], device)
        with MemberOps(None, masks, grouped=False), self.watch, self.watch.layers():
            self.loss = checked(work.loss_fn(self._model, batch), count)

    def changed(self) -> frozenset[str]:
        """Names the buffers that were changed in place, or assigned anew."""
        return frozenset(
            name
            for name, one in self._model.named_buffers()
            if self._given[name][0] is not one
            or self._given[name][1] != one._version
            or not torch.equal(self._given[name][2], one)  # BatchNorm's kernel counts no version
        )


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
