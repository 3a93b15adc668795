"""`OneCycleAutoLR`: the paper's algorithm behind the signature of `OneCycleLR`, for a loop that has one already.

Three phases, by the optimizer steps t taken so far, with warm-up S_warm and interval T:

    t ≤ S_warm       rate on replica r = OneCycle(t)·ρ_r; parameters are averaged whenever T divides t
    t > S_warm       with auto-LR: η̄ begins at OneCycle(S_warm), is constant within an interval, and moves
    at each sync
                     by the paper's rule; replicas take a new permutation of ρ, one for each parameter group
    without auto-LR  the first phase goes on to the end
    α = 0            nothing is averaged or communicated: OneCycleLR under DDP, bit for bit

γ is taken from the rate at the end of the warm-up, group by group, so that with no signal η̄ arrives at
OneCycle's own floor with the last sync; below that floor η̄ never goes. Momentum is cycled by OneCycle
throughout. Rates are Python floats.

The scheduler knows the optimizer's parameters only: buffers (BatchNorm) are left to DDP, which broadcasts
replica 0's. For other policies, probes, or other hyperparameters use `HDETController`.
"""

import time
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor
from torch.optim import Optimizer
from torch.optim.lr_scheduler import OneCycleLR

from headrace_torch.hdet import sharding
from headrace_torch.hdet.averaging import average_, trained
from headrace_torch.hdet.designs import DesignName, assign
from headrace_torch.hdet.errors import ResumeError
from headrace_torch.hdet.exchange import exchange
from headrace_torch.hdet.hyperparameter import write_lr
from headrace_torch.hdet.losses import LossMeter
from headrace_torch.hdet.one_cycle_checks import COMMON, OWN, VERSION, OneCycleSettings, cannot_resume
from headrace_torch.hdet.probe import Probe
from headrace_torch.hdet.records import HyperparameterRecord, SyncCallback, SyncReport
from headrace_torch.hdet.replicas import ReplicaGroup, judged
from headrace_torch.hdet.rules import PaperRule, decay_rate, multipliers, scores


class OneCycleAutoLR(OneCycleLR):
    """A drop-in for `OneCycleLR` that spreads the rate over the replicas, averages them, and moves the rate.

    The only change to a loop is `step(loss)`. Under gradient accumulation call `observe(loss)` for each
    micro-batch and `step()` once. Arguments up to `momentum_of_lr` are those of the published reference,
    with its defaults.
    """

    def __init__(
        self,
        optimizer: Optimizer,
        max_lr: float | list[float],
        total_steps: int | None = None,
        epochs: int | None = None,
        steps_per_epoch: int | None = None,
        pct_start: float = 0.3,
        anneal_strategy: Literal["cos", "linear"] = "cos",
        cycle_momentum: bool = True,
        base_momentum: float | list[float] = 0.85,
        max_momentum: float | list[float] = 0.95,
        div_factor: float = 25.0,
        final_div_factor: float = 1e4,
        three_phase: bool = False,
        last_epoch: int = -1,
        auto_lr_warmup_steps: int = 100_000,
        ensemble_lr_spread_ratio: float = 0.0,
        model_sync_interval: int = 1000,
        rank: int = 0,  # noqa: ARG002  part of the signature that is replaced
        world_size: int = 1,
        enable_auto_lr: bool = False,
        loss_scale: float = 0.002,
        lr_of_lr: float = 0.5,
        momentum_of_lr: float = 0.9,
        *,
        seed: int = 0,
        design: DesignName = "permutation",
        replica_group: ReplicaGroup | dist.ProcessGroup | None = None,
        probe: Probe | None = None,
        on_sync: SyncCallback | None = None,
    ) -> None:
        """Checks the settings with all ranks and sets this replica's first rate. A collective if there is a spread.

        Args:
            optimizer: its parameters are averaged.
            max_lr: OneCycle's greatest rate, one or one per group.
            total_steps: S; or give epochs and steps_per_epoch.
            epochs: with steps_per_epoch, instead of total_steps.
            steps_per_epoch: see epochs.
            pct_start: passed to OneCycleLR, like anneal_strategy, cycle_momentum, base_momentum,
                max_momentum, div_factor, final_div_factor and three_phase.
            anneal_strategy: see pct_start.
            cycle_momentum: see pct_start; set it to False for an optimizer without momentum or betas.
            base_momentum: see pct_start.
            max_momentum: see pct_start.
            div_factor: see pct_start.
            final_div_factor: see pct_start; the floor is max_lr/(div_factor·final_div_factor).
            three_phase: see pct_start.
            last_epoch: only −1 with auto-LR: resume with load_state_dict, which also restores what auto-LR
                has learnt.
            auto_lr_warmup_steps: S_warm; must be less than total_steps if auto-LR is on.
            ensemble_lr_spread_ratio: α, in [0, 1).
            model_sync_interval: T, in steps.
            rank: ignored where a process group says otherwise.
            world_size: ignored where a process group says otherwise.
            enable_auto_lr: whether the rate moves after the warm-up.
            loss_scale: σ, in units of the loss (the paper's text has 0.1, its code 0.002).
            lr_of_lr: λ.
            momentum_of_lr: β.
            seed: of the permutations.
            design: who takes which multiplier; the paper's is `permutation`.
            replica_group: the replicas; by default every rank is one.
            probe: scores replicas in place of the training loss.
            on_sync: called with each report, on every rank.

        Raises:
            HdetConfigError: a setting is out of range, or ranks were given different ones.
            NotReplicasError: the ranks hold shards, or different models.
        """
        given = replica_group if isinstance(replica_group, ReplicaGroup) else ReplicaGroup(replica_group)
        self._replicas = given
        self._alpha, self._interval = ensemble_lr_spread_ratio, model_sync_interval
        self._warmup, self._auto = auto_lr_warmup_steps, enable_auto_lr
        self._rule = PaperRule(beta=momentum_of_lr, sigma=loss_scale, lam=lr_of_lr)
        self._seed, self._design, self._probe, self._on_sync = seed, design, probe, on_sync
        self._meter = LossMeter()
        self._syncs = 0
        self._base: list[float] = []  # OneCycle's rates at last_epoch
        self._centers: list[float] | None = None  # η̄ per group, from the end of the warm-up on
        self._gammas: list[float] = []
        self._velocities: list[float] = []
        self._ready = False  # the base class takes a first step while it is made; it is not one of training

        steps = total_steps
        if steps is None and epochs is not None and steps_per_epoch is not None:
            steps = epochs * steps_per_epoch
        settings: dict[str, object] = {
            "ensemble_lr_spread_ratio": self._alpha,
            "model_sync_interval": self._interval,
            "auto_lr_warmup_steps": self._warmup,
            "enable_auto_lr": self._auto,
            "total_steps": steps,
            "max_lr": max_lr,
            "pct_start": pct_start,
            "anneal_strategy": anneal_strategy,
            "div_factor": div_factor,
            "final_div_factor": final_div_factor,
            "three_phase": three_phase,
            "momentum": (cycle_momentum, base_momentum, max_momentum),
            "last_epoch": last_epoch,
            "rule": self._rule,
            "seed": seed,
            "design": design,
            "probe": probe is not None,
            "parameter groups": len(optimizer.param_groups),
        }
        checked = OneCycleSettings(
            alpha=self._alpha,
            interval=self._interval,
            warmup=self._warmup,
            auto=self._auto,
            steps=steps,
            last_epoch=last_epoch,
            rule=self._rule,
            design=design,
            has_group=self._replicas.across is not None,
            world_size=world_size,
        )
        # Agreed on even at α = 0 where there are replicas: ranks with different α would otherwise wait for
        # each other.
        self._replicas.agree(problem=judged(checked.problem), config=settings)
        self._parameters = trained(p for group in optimizer.param_groups for p in group["params"])
        if self._alpha > 0:
            sharding.require_replicas(None, self._parameters, optimizer, self._replicas)
        self._orders = self._identity(len(optimizer.param_groups))
        super().__init__(
            optimizer,
            max_lr,
            total_steps,
            epochs,
            steps_per_epoch,
            pct_start,
            anneal_strategy,
            cycle_momentum,
            base_momentum,
            max_momentum,
            div_factor,
            final_div_factor,
            three_phase,
            last_epoch,
        )
        self._ready = True

    @property
    def diverges(self) -> bool:
        """Whether replicas take different rates, so that sync points do anything."""
        return self._alpha > 0 and self._replicas.size > 1

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Adds the loss of a micro-batch, which stands for `weight` samples; waits for no device."""
        self._meter.observe(loss, weight)

    def step(self, loss: Tensor | float | None = None) -> SyncReport | None:  # type: ignore[override]  # the seed's step
        """Call it after each optimizer step, with the step's training loss; at a sync point returns the report.

        Raises:
            SyncError: on every rank; see `headrace_torch.hdet.exchange`.
        """
        if loss is not None and self._ready and self.diverges:
            self.observe(loss)
        super().step()
        if not self._ready or not self.diverges or self.last_epoch % self._interval:
            return None
        return self._sync()

    def get_lr(self) -> list[float | Tensor]:
        """Returns this replica's rates at `last_epoch`; OneCycle also cycles the momentum here."""
        base = [float(rate) for rate in super().get_lr()]
        self._base = base
        if not self.diverges:
            return list(base)
        if self._auto and self._centers is None and self.last_epoch >= self._warmup:
            self._begin(base)
        fan = multipliers(self._replicas.size, self._alpha)
        centers = base if self._centers is None else self._centers
        mine = [order[self._replicas.rank] for order in self._orders]
        return [center * fan[place] for center, place in zip(centers, mine, strict=True)]

    def state_dict(self) -> dict[str, Any]:
        """Returns OneCycle's state and this replica's, in plain values.

        In the middle of an interval each rank saves its own.
        """
        hidden = ("_replicas", "_parameters", "_probe", "_on_sync", "_meter", "_rule")
        state = {key: value for key, value in super().state_dict().items() if key not in hidden}
        total, weight = self._meter.read()
        own = {
            "version": VERSION,
            "replicas": self._replicas.size,
            "replica": self._replicas.rank,
            "loss_total": total,
            "loss_weight": weight,
            "orders": [list(order) for order in self._orders],
        }
        return {key: value for key, value in state.items() if key not in ("_orders", "_ready")} | {OWN: own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Goes on from a state, after the optimizer has loaded its own. A collective.

        Raises:
            ResumeError: another number of replicas, another replica's state in the middle of an interval, or
                other settings.
        """
        read: dict[str, Any] = {}

        def check() -> str | None:
            interval = self._interval if self.diverges else 1
            problem = cannot_resume(state_dict, now=vars(self), replicas=self._replicas, interval=interval)
            if problem is None:  # all of it is read before the ranks agree: none may find it unreadable alone
                own = state_dict[OWN]
                read["orders"] = tuple(
                    tuple(int(place) for place, _ in zip(order, now, strict=True))
                    for order, now in zip(own["orders"], self._orders, strict=True)
                )
                read["loss"] = (float(own["loss_total"]), float(own["loss_weight"]))
            return problem

        problem = judged(check)
        common = {} if problem else {key: state_dict[key] for key in COMMON}
        self._replicas.agree(problem=problem, config=common, error=ResumeError)
        super().load_state_dict({key: value for key, value in state_dict.items() if key != OWN})
        self._orders = read["orders"]
        self._meter.load(*read["loss"])

    def _begin(self, base: Sequence[float]) -> None:
        """The warm-up is over: η̄ starts from OneCycle's rate, and γ leads from there to its floor."""
        first = self._warmup // self._interval  # syncs up to and including S_warm
        remaining = self.total_steps // self._interval - first
        floors = self._floors()
        self._centers = list(base)
        self._velocities = [0.0 for _ in base]
        self._gammas = [decay_rate(rate, floor, remaining) for rate, floor in zip(base, floors, strict=True)]

    def _sync(self) -> SyncReport:
        """Converges, and moves η̄ if the warm-up is over."""
        began = time.monotonic()
        heard = exchange(self._replicas, self._meter, self._probe, self._parameters, sync=self._syncs + 1)
        sent = average_(self._parameters, self._replicas, sources=heard.sources)
        updated = self._centers is not None and self.last_epoch > self._warmup
        self._syncs += 1
        self._meter.reset()
        records = self._move(heard.losses) if updated else self._hold()
        report = SyncReport(
            sync=self._syncs,
            step=self.last_epoch,
            scored_by="loss" if self._probe is None else "probe",
            losses=heard.losses,
            scores=scores(heard.losses, self._rule.sigma),
            weights=self._rule.weights(heard.losses),
            hyperparameters=records,
            left_out=tuple(sorted(set(range(self._replicas.size)) - set(heard.sources))),
            updated=updated,
            bytes_averaged=sent,
            seconds=time.monotonic() - began,
        )
        if self._on_sync is not None:
            self._on_sync(report)
        return report

    def _hold(self) -> tuple[HyperparameterRecord, ...]:
        """Leaves every group's centre and multipliers as they are."""
        centers = self._base if self._centers is None else self._centers
        return tuple(
            self._record(number, center, order, reached=center, following=order)
            for number, (center, order) in enumerate(zip(centers, self._orders, strict=True))
        )

    def _move(self, losses: Sequence[float | None]) -> tuple[HyperparameterRecord, ...]:
        """Moves every group's η̄ and gives replicas new multipliers, and this replica its next rates."""
        assert self._centers is not None
        fan = multipliers(self._replicas.size, self._alpha)
        names = [str(number) for number in range(len(self.optimizer.param_groups))]
        orders = assign(self._design, seed=self._seed, sync=self._syncs, names=names, n=self._replicas.size)
        records = []
        for number, (center, order) in enumerate(zip(list(self._centers), self._orders, strict=True)):
            moved = self._rule.move(
                center=center,
                velocity=self._velocities[number],
                values=[center * fan[place] for place in order],
                losses=losses,
                gamma=self._gammas[number],
                floor=self._floors()[number],
            )
            self._centers[number], self._velocities[number] = moved.center, moved.velocity
            records.append(
                self._record(
                    number,
                    center,
                    order,
                    reached=moved.center,
                    following=orders[number],
                    velocity=moved.velocity,
                    signal=moved.signal,
                )
            )
        self._orders = orders
        rates = [record.values[self._replicas.rank] for record in records]
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            write_lr(group, rate)
        self._last_lr = list(rates)
        return tuple(records)

    def _record(
        self,
        number: int,
        center: float,
        order: Sequence[int],
        *,
        reached: float,
        following: Sequence[int],
        velocity: float = 0.0,
        signal: float = 0.0,
    ) -> HyperparameterRecord:
        """One group's record: what was explored in the interval that ended, and what will be."""
        fan = multipliers(self._replicas.size, self._alpha)
        return HyperparameterRecord(
            name=f"lr/{self.optimizer.param_groups[number].get('name', number)}",
            center=reached,
            values=tuple(reached * fan[place] for place in following),
            explored=tuple(center * fan[place] for place in order),
            velocity=velocity,
            signal=signal,
        )

    def _floors(self) -> list[float]:
        return [float(group["min_lr"]) for group in self.optimizer.param_groups]

    def _identity(self, groups: int) -> tuple[tuple[int, ...], ...]:
        """Replica r takes ρ_r, in every group."""
        return tuple(tuple(range(self._replicas.size)) for _ in range(groups))
