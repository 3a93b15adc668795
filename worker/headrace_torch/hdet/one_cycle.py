"""`OneCycleAutoLR`: `OneCycleLR` with rates that are spread over the replicas, and that adapt.

Compared with OneCycle on a small GPT (AdamW / SGD, nats per byte, `benchmarks/hdet/drop_in.py`): with a probe it
is 0.38 / 0.11 better from a rate that is ten times too low, and equal at the right one; without a probe it is
equal. The paper's form is 0.31 / 0.18 worse and 0.11 / 0.17 worse.

By the optimizer steps t taken so far, with warm-up S_warm, interval T and `form="factor"`:

    t ≤ S_warm       rate on replica r = OneCycle(t)·ρ_r; parameters are averaged whenever T divides t
    t > S_warm       with auto-LR: OneCycle(t)·f·ρ_r; at each sync f moves by the paper's signal, and replicas take
                     a new permutation of ρ, one for each parameter group
                     without auto-LR: the first phase continues to the end
    α = 0            nothing is averaged or communicated: OneCycleLR under DDP, bit for bit

So without a signal the run is OneCycle's. `form="paper"` is the published algorithm, which replaces the schedule
with a rate η̄ that decays geometrically; see `headrace_torch.hdet.forms`. Buffers (BatchNorm) are left to DDP. For
other policies or other hyperparameters, use `HDETController`.
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
from headrace_torch.hdet.exchange import exchange, require_shared_gradients
from headrace_torch.hdet.fingerprint import of_sample
from headrace_torch.hdet.forms import FactorForm, Form, FormName, Interval, PaperForm
from headrace_torch.hdet.hyperparameter import write_lr
from headrace_torch.hdet.losses import LossMeter
from headrace_torch.hdet.one_cycle_checks import OWN, VERSION, OneCycleSettings, Resumed, cannot_resume
from headrace_torch.hdet.probe import Probe
from headrace_torch.hdet.records import HyperparameterRecord, SyncCallback, SyncReport
from headrace_torch.hdet.replicas import ReplicaGroup, judged
from headrace_torch.hdet.rules import FactorRule, Moved, PaperRule, Trend, multipliers, positions, scores
from headrace_torch.hdet.watch import TIMEOUT_S


class OneCycleAutoLR(OneCycleLR):
    """A drop-in for `OneCycleLR` that spreads the rate over the replicas, averages them, and adapts the rate.

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
        form: FormName = "factor",
        timeout_s: float | None = TIMEOUT_S,
        on_sync: SyncCallback | None = None,
    ) -> None:
        """Checks the settings with all ranks and sets this replica's first rate. A collective if there is a spread.

        Args:
            optimizer: its parameters are averaged.
            max_lr: OneCycle's highest rate, one or one per group.
            total_steps: S; or give epochs and steps_per_epoch.
            epochs, steps_per_epoch: together, instead of total_steps.
            pct_start: passed to OneCycleLR, as all arguments up to three_phase. Set cycle_momentum to False for an
                optimizer without momentum or betas. The floor is max_lr/(div_factor·final_div_factor).
            anneal_strategy, cycle_momentum, base_momentum, max_momentum: see pct_start.
            div_factor, final_div_factor, three_phase: see pct_start.
            last_epoch: only −1 with auto-LR: resume with load_state_dict, which also restores what auto-LR
                has learnt.
            auto_lr_warmup_steps: S_warm; must be less than total_steps if auto-LR is on.
            ensemble_lr_spread_ratio: α, in [0, 1).
            model_sync_interval: T, in steps.
            rank, world_size: ignored if a process group says otherwise.
            enable_auto_lr: whether the rate adapts after the warm-up.
            loss_scale: σ, in units of the loss (the paper's text has 0.1, its code 0.002).
            lr_of_lr: λ.
            momentum_of_lr: β.
            seed: of the permutations.
            design: who takes which multiplier; the paper's is `permutation`.
            replica_group: the replicas; by default every rank is one.
            probe: scores replicas in place of the training loss.
            form: `factor` multiplies the schedule by a learned factor; `paper` replaces it, as published.
            timeout_s: how much longer than the slowest interval ranks may stand still before the job ends; `None`
                for no watch.
            on_sync: called with each report, on every rank.

        Raises:
            HdetConfigError: a setting is out of range, or ranks were given different ones.
            NotReplicasError: the ranks hold shards, or different models.
        """
        self._replicas = ReplicaGroup.of(replica_group)
        self._alpha, self._interval = ensemble_lr_spread_ratio, model_sync_interval
        self._warmup, self._auto = auto_lr_warmup_steps, enable_auto_lr
        self._seed, self._design, self._probe, self._on_sync = seed, design, probe, on_sync
        self._meter = LossMeter()
        self._syncs = 0
        self._base: list[float] = []  # OneCycle's rates at last_epoch
        self._base_before: list[float] = []  # and at the last sync point
        self._trend = Trend()
        self._first = True  # this object has seen no step of training
        self._ready = False  # the base class takes a first step while it is made; it is no training step

        steps = total_steps
        if steps is None and epochs is not None and steps_per_epoch is not None:
            steps = epochs * steps_per_epoch
        settings = OneCycleSettings(
            ensemble_lr_spread_ratio=ensemble_lr_spread_ratio,
            model_sync_interval=model_sync_interval,
            auto_lr_warmup_steps=auto_lr_warmup_steps,
            enable_auto_lr=enable_auto_lr,
            total_steps=steps,
            max_lr=max_lr,
            pct_start=pct_start,
            anneal_strategy=anneal_strategy,
            div_factor=div_factor,
            final_div_factor=final_div_factor,
            three_phase=three_phase,
            momentum=(cycle_momentum, base_momentum, max_momentum),
            last_epoch=last_epoch,
            momentum_of_lr=momentum_of_lr,
            loss_scale=loss_scale,
            lr_of_lr=lr_of_lr,
            seed=seed,
            design=design,
            form=form,
            probe=probe is not None,
            timeout_s=timeout_s,
            groups=len(optimizer.param_groups),
        )
        # Checked even at α = 0 if there are replicas: ranks with different α would otherwise wait for each other.
        has_group = self._replicas.across is not None
        self._settings = settings.agreed()
        roll = self._replicas.agree(
            problem=judged(lambda: settings.problem(has_group=has_group, world_size=world_size)),
            config=self._settings,
        )
        assert steps is not None
        self._watch = self._replicas.watch(roll, timeout_s) if self.diverges else None
        self._parameters = trained(p for group in optimizer.param_groups for p in group["params"])
        if self._alpha > 0:
            sharding.require_replicas(None, self._parameters, optimizer, self._replicas)
        groups = len(optimizer.param_groups)
        self._orders = tuple(tuple(range(self._replicas.size)) for _ in range(groups))  # replica r takes ρ_r
        self._rule: FactorRule | PaperRule
        self._form: Form
        if form == "factor":
            factor = FactorRule(beta=momentum_of_lr, sigma=loss_scale, lam=lr_of_lr)
            self._rule, self._form = factor, FactorForm(factor, groups)
        else:
            paper = PaperRule(beta=momentum_of_lr, sigma=loss_scale, lam=lr_of_lr)
            self._rule = paper
            self._form = PaperForm(
                paper, groups, alpha=self._alpha, warmup=self._warmup, interval=self._interval, steps=steps
            )
        self._own = frozenset(vars(self)) | {"_own"}  # what the base class does not have
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
        self._base_before = list(self._base)
        self._ready = True

    @property
    def diverges(self) -> bool:
        """Whether replicas take different rates, so that sync points do anything."""
        return self._alpha > 0 and self._replicas.size > 1

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Adds the loss of a micro-batch, which stands for `weight` samples; does not wait for the device."""
        self._meter.observe(loss, weight)

    def step(self, loss: Tensor | float | None = None) -> SyncReport | None:  # type: ignore[override]  # the seed's step
        """Call it after each optimizer step, with the step's training loss; at a sync point returns the report.

        Raises:
            SyncError: on every rank; see `headrace_torch.hdet.exchange`.
            StallError: the ranks wait for each other; see `headrace_torch.hdet.watch`.
        """
        if loss is not None and self._ready and self.diverges:
            self.observe(loss)
        super().step()
        if not self._ready or not self.diverges:
            return None
        if self._watch is not None:
            self._watch.step(self.last_epoch)
        if self._first:
            require_shared_gradients(self._replicas, self._parameters)
            self._first = False
        return None if self.last_epoch % self._interval else self._sync()

    def get_lr(self) -> list[float | Tensor]:
        """Returns this replica's rates at `last_epoch`; OneCycle also cycles the momentum here."""
        self._base = [float(rate) for rate in super().get_lr()]
        return list(self._rates())

    def state_dict(self) -> dict[str, Any]:
        """Returns OneCycle's state and this replica's, in plain values.

        In the middle of an interval each rank saves its own.
        """
        total, weight = self._meter.read()
        own = {
            "version": VERSION,
            "replicas": self._replicas.size,
            "replica": self._replicas.rank,
            "settings": dict(self._settings),
            "syncs": self._syncs,
            "base": list(self._base),
            "base_before": list(self._base_before),
            "trend": [self._trend.mean, self._trend.square],
            "form": self._form.state(),
            "loss_total": total,
            "loss_weight": weight,
            "orders": [list(order) for order in self._orders],
            "parameters": of_sample(self._parameters),
        }
        state = {key: value for key, value in super().state_dict().items() if key not in self._own}
        return state | {OWN: own}

    def load_state_dict(self, state_dict: Mapping[str, Any]) -> None:
        """Resumes from a state, after model and optimizer have loaded their own; sets this replica's rates.

        A collective: all ranks load, or all raise.

        Raises:
            ResumeError: another number of replicas, another replica's state or parameters in the middle of an
                interval, or other settings.
        """
        read: list[Resumed] = []
        before = self._form.state()

        def check() -> str | None:
            problem = cannot_resume(
                state_dict,
                settings=self._settings,
                replicas=self._replicas,
                interval=self._interval if self.diverges else 1,
                parameters=self._parameters,
            )
            if problem is None:  # all of it is read before the ranks agree: none may find it unreadable alone
                read.append(Resumed.of(state_dict[OWN], like=self._orders))
                self._form.load(state_dict[OWN]["form"])
            return problem

        problem = judged(check)
        common: dict[str, object] = {}
        if problem is None:
            common = {
                "last_epoch": state_dict["last_epoch"],
                "syncs": read[0].syncs,
                "rates": self._form.state(),
            }
        try:
            self._replicas.agree(problem=problem, config=common, error=ResumeError)
        except ResumeError:
            self._form.load(before)
            raise
        super().load_state_dict({key: value for key, value in state_dict.items() if key != OWN})
        (found,) = read
        self._orders, self._syncs, self._trend = found.orders, found.syncs, found.trend
        self._base, self._base_before = found.base, found.base_before
        self._meter.load(*found.loss)
        self._write(self._rates())

    def _rates(self) -> list[float]:
        """This replica's rates at `last_epoch`."""
        if not self.diverges:
            return list(self._base)
        fan = multipliers(self._replicas.size, self._alpha)
        mine = [fan[order[self._replicas.rank]] for order in self._orders]
        return [center * rho for center, rho in zip(self._centers(), mine, strict=True)]

    def _centers(self) -> list[float]:
        """The rates in the middle of the fans at `last_epoch`."""
        if not self._auto:
            return list(self._base)
        return self._form.centers(self.last_epoch, self._base, self._floors())

    def _write(self, rates: list[float]) -> None:
        for group, rate in zip(self.optimizer.param_groups, rates, strict=True):
            write_lr(group, rate)
        self._last_lr = list(rates)

    def _sync(self) -> SyncReport:
        """Converges, and adapts the rates if the warm-up is over."""
        began = time.monotonic()
        if self._watch is not None:
            self._watch.meet(self._syncs + 1)
        heard = exchange(
            self._replicas,
            self._meter,
            self._probe,
            self._parameters,
            sync=self._syncs + 1,
            step=self.last_epoch,
            rates=self._base,
            gradients="shared",
        )
        sent = average_(self._parameters, self._replicas, sources=heard.sources)
        updated = self._auto and self.last_epoch > self._warmup
        self._syncs += 1
        self._meter.reset()
        report = SyncReport(
            sync=self._syncs,
            step=self.last_epoch,
            scored_by="loss" if self._probe is None else "probe",
            losses=heard.losses,
            scores=scores(heard.losses, self._rule.sigma),
            weights=self._rule.weights(heard.losses),
            hyperparameters=self._advance(heard.losses, move=updated),
            left_out=tuple(sorted(set(range(self._replicas.size)) - set(heard.sources))),
            updated=updated,
            bytes_averaged=sent,
            seconds=time.monotonic() - began,
        )
        if self._on_sync is not None:
            self._on_sync(report)
        return report

    def _advance(self, losses: Sequence[float | None], *, move: bool) -> tuple[HyperparameterRecord, ...]:
        """Updates every group and gives replicas new multipliers, if enabled; records the old and the new values."""
        fan = multipliers(self._replicas.size, self._alpha)
        groups = range(len(self.optimizer.param_groups))
        were, before = self._orders, self._centers()
        self._trend, improving = self._trend.after(losses)
        moves = [Moved(center=center, velocity=0.0, signal=0.0) for center in before]
        if move:
            middle, floors = positions(self._replicas.size), self._floors()
            moves = [
                self._form.move(
                    number,
                    Interval(
                        places=[middle[place] for place in were[number]],
                        losses=losses,
                        held=improving or self._base[number] < self._base_before[number],
                        floor=floors[number],
                    ),
                )
                for number in groups
            ]
            self._orders = assign(
                self._design,
                seed=self._seed,
                sync=self._syncs,
                names=[str(number) for number in groups],
                n=self._replicas.size,
            )
            self._write(self._rates())
        after = self._centers()
        self._base_before = list(self._base)
        return tuple(
            HyperparameterRecord(
                name=f"lr/{self.optimizer.param_groups[number].get('name', number)}",
                center=after[number],
                values=tuple(after[number] * fan[place] for place in self._orders[number]),
                explored=tuple(before[number] * fan[place] for place in were[number]),
                velocity=moves[number].velocity,
                signal=moves[number].signal,
            )
            for number in groups
        )

    def _floors(self) -> list[float]:
        return [float(group["min_lr"]) for group in self.optimizer.param_groups]
