"""Any learning-rate schedule, times what the controller has learned: LR = base(t) · exp(μ) · ρ."""

from collections.abc import Mapping
from typing import Any

from torch import Tensor
from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from headrace_torch.hdet.controller import HDETController
from headrace_torch.hdet.errors import HdetConfigError, ResumeError
from headrace_torch.hdet.hyperparameter import SCALE, write_lr
from headrace_torch.hdet.records import SyncReport
from headrace_torch.hdet.replicas import judged


class HDETScheduler:
    """Multiplies a schedule's rates by the factors that a controller explores, and steps both.

    The schedule never sees the factors: before it steps, each group has the rate that the schedule itself set. So
    schedules that compute a rate from the previous one (cosine annealing, chained ones) work unchanged, and so
    does the momentum that they cycle.
    """

    def __init__(self, base_scheduler: LRScheduler, controller: HDETController) -> None:
        """Applies the first factors at once: replicas differ from the first step on. A collective.

        Raises:
            HdetConfigError: the controller explores no learning rate of this schedule's optimizer, or ranks have
                different schedules.
        """
        self.base_scheduler = base_scheduler
        self.controller = controller
        if not any(SCALE in group for group in self._groups):
            raise HdetConfigError(
                "the controller explores no learning rate of this optimizer; pass "
                "hyperparameters=learning_rates(optimizer)"
            )
        self._base = [float(group["lr"]) for group in self._groups]
        schedule = type(base_scheduler).__name__
        controller.group.agree(
            problem=None, config={"the schedule": schedule, "the schedule's rates": list(self._base)}
        )
        self._apply()

    def step(self, loss: Tensor | float | None = None, *, metric: float | None = None) -> SyncReport | None:
        """Call it after each optimizer step: steps the schedule, and the controller; returns the report of a sync.

        Args:
            loss: the step's training loss; leave it out if micro-batches were given to `controller.observe`.
            metric: for `ReduceLROnPlateau`, the same on all ranks.
        """
        plateau = isinstance(self.base_scheduler, ReduceLROnPlateau)
        if plateau and metric is None:
            raise HdetConfigError("ReduceLROnPlateau needs step(metric=…), the same on all ranks")
        if loss is not None:
            self.controller.observe(loss)
        for group, rate in zip(self._groups, self._base, strict=True):
            write_lr(group, rate)
        if plateau:
            self.base_scheduler.step(metric)  # type: ignore[arg-type]  # a metric here, an epoch elsewhere
        else:
            self.base_scheduler.step()
        self._base = [float(group["lr"]) for group in self._groups]
        try:
            return self.controller.after_step(self._rates())
        finally:
            self._apply()

    def get_last_lr(self) -> list[float]:
        """Returns this replica's rates, one per parameter group."""
        return [float(group["lr"]) for group in self._groups]

    def state_dict(self) -> dict[str, Any]:
        """Returns the schedule's state, its rates and the controller's state."""
        return {
            "base_scheduler": self.base_scheduler.state_dict(),
            "base_rates": list(self._base),
            "controller": self.controller.state_dict(),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state, after the optimizer has loaded its own. A collective.

        Raises:
            ResumeError: see `HDETController.load_state_dict`.
        """
        read: dict[str, Any] = {}

        def check() -> str | None:
            if missing := sorted({"base_scheduler", "base_rates", "controller"} - state.keys()):
                return f"the state was not written by HDETScheduler: it has no {', '.join(missing)}"
            read["schedule"] = dict(state["base_scheduler"])
            read["rates"] = [float(rate) for rate, _ in zip(state["base_rates"], self._groups, strict=True)]
            return None

        problem = judged(check)
        common = {} if problem else {"the schedule's rates": read["rates"]}
        self.controller.group.agree(problem=problem, config=common, error=ResumeError)
        self.controller.load_state_dict(state["controller"])
        self.base_scheduler.load_state_dict(read["schedule"])
        self._base = read["rates"]
        self._apply()

    @property
    def _groups(self) -> list[dict[str, Any]]:
        # Looked up each time: loading a checkpoint into the optimizer replaces them.
        return self.base_scheduler.optimizer.param_groups

    def _apply(self) -> None:
        for group, rate in zip(self._groups, self._base, strict=True):
            write_lr(group, rate * float(group.get(SCALE, 1.0)))

    def _rates(self) -> dict[str, float]:
        """The schedule's rates under the names of `learning_rates`."""
        return {
            f"lr/{group.get('name', number)}": rate
            for number, (group, rate) in enumerate(zip(self._groups, self._base, strict=True))
        }
