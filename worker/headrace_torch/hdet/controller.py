"""Replicas fan out over hyperparameters, and converge: the controller of one training job.

    fan-out    every replica trains `sync_every` steps under its own value of every hyperparameter
    score      the mean training loss of the interval, or a common probe batch on each replica's own parameters
    converge   parameters (buffers and optimizer state by policy) become the mean over replicas
    move       each hyperparameter's centre moves toward the replicas that did better
    assign     a new design says who explores what; back to fan-out

All ranks make a controller with the same settings, and all call `after_step` after each optimizer step: sync
points are counted, never negotiated. Between them nothing is communicated beyond what DDP does. Every rank
computes how a centre moves from the same gathered numbers, so no rank is in charge and none has to be informed.
"""

import time
import warnings
from collections.abc import Mapping, Sequence
from typing import Any, Literal

import torch.distributed as dist
from torch import Tensor, nn
from torch.optim import Optimizer

from headrace_torch.hdet import sharding
from headrace_torch.hdet.averaging import (
    BUCKET_BYTES,
    BufferPolicy,
    MasterPairs,
    OptimizerPolicy,
    average_,
    copy_masters,
    merge_buffers,
    merge_optimizer,
    trained,
)
from headrace_torch.hdet.controller_checks import VERSION, Parts, cannot_resume
from headrace_torch.hdet.designs import DesignName, assign
from headrace_torch.hdet.errors import ResumeError
from headrace_torch.hdet.exchange import Exchange, exchange, require_shared_gradients
from headrace_torch.hdet.fingerprint import layout_of, of_sample
from headrace_torch.hdet.hyperparameter import ScalarHyperparameter
from headrace_torch.hdet.losses import LossMeter
from headrace_torch.hdet.probe import Probe, SwitchedOff
from headrace_torch.hdet.records import HyperparameterRecord, SyncCallback, SyncReport
from headrace_torch.hdet.replicas import ReplicaGroup, judged
from headrace_torch.hdet.rules import Evidence, LogSpaceRule, Moved, Trend, positions
from headrace_torch.hdet.settings import Settings
from headrace_torch.hdet.watch import TIMEOUT_S


class HDETController:
    """Explores scalar hyperparameters over the replicas of a data-parallel job.

    A controller is made on every rank after the model is wrapped and the optimizer exists. If no hyperparameter has a
    spread and gradients are shared, replicas stay equal by themselves and nothing is averaged: the run is
    plain DDP, bit for bit.
    """

    def __init__(
        self,
        model: nn.Module,
        optimizer: Optimizer,
        hyperparameters: Sequence[ScalarHyperparameter],
        replica_group: ReplicaGroup | dist.ProcessGroup | None = None,
        sync_every: int = 1000,
        mode: Literal["shared_grad", "local_grad"] = "shared_grad",
        *,
        score: Literal["loss"] | Probe = "loss",
        design: DesignName = "orthogonal",
        optimizer_state: OptimizerPolicy = "keep",
        buffers: BufferPolicy = "average",
        seed: int = 0,
        rule: LogSpaceRule | None = None,
        start_after: int = 0,
        masters: MasterPairs = (),
        bucket_bytes: int = BUCKET_BYTES,
        timeout_s: float | None = TIMEOUT_S,
        on_sync: SyncCallback | None = None,
    ) -> None:
        """Checks the settings with all ranks, and sets each replica's first values. A collective.

        Args:
            model: the model; its parameters that require gradients are averaged.
            optimizer: the optimizer that steps them.
            hyperparameters: what to explore; see `learning_rates`, `weight_decay`, `dropout`, …
            replica_group: the replicas; by default every rank is one.
            sync_every: T, the optimizer steps between sync points.
            mode: `shared_grad` for DDP, which averages gradients; `local_grad` if each replica steps on its
                own gradients.
            score: `loss` for the training losses that `observe` is given, or a probe.
            design: who explores what; see `headrace_torch.hdet.designs`.
            optimizer_state: `keep` (under shared gradients the moments are nearly equal anyway), `average`
                or `reset`.
            buffers: `average`, `broadcast` (replica 0's) or `keep`.
            seed: of the design.
            rule: how centres move.
            start_after: no centre moves at a sync point up to this step.
            masters: pairs (low-precision parameter, its float32 master): masters are averaged and rounded
                into the copies.
            bucket_bytes: the size of one collective.
            timeout_s: how much longer than the slowest interval ranks may stand still before the job ends; `None`
                for no watch.
            on_sync: called with each report, on every rank.

        Raises:
            HdetConfigError: a setting is out of range, or ranks were given different ones.
            NotReplicasError: the ranks hold shards, or different models.
        """
        self.group = ReplicaGroup.of(replica_group)
        self.hyperparameters = tuple(hyperparameters)
        self.sync_every = sync_every
        self.rule = rule if rule is not None else LogSpaceRule()
        self._model, self._optimizer = model, optimizer
        self._parameters = trained(model.parameters(), masters)
        self._masters = tuple(masters)
        self._mode, self._design, self._seed, self._start_after = mode, design, seed, start_after
        self._probe = score if isinstance(score, Probe) else None
        self._buffers, self._optimizer_state, self._bucket_bytes = buffers, optimizer_state, bucket_bytes
        self._on_sync = on_sync
        self._meter = LossMeter()
        self._steps = 0
        self._first = True  # this object has seen no step of training
        self._syncs = 0
        self._trend = Trend()
        self._base_before: dict[str, float] = {}  # the schedule's rates at the last sync point

        settings = Settings(
            sync_every=sync_every,
            mode=mode,
            score="probe" if isinstance(score, Probe) else score,
            design=design,
            optimizer_state=optimizer_state,
            buffers=buffers,
            seed=seed,
            rule=self.rule,
            start_after=start_after,
            bucket_bytes=bucket_bytes,
            timeout_s=timeout_s,
        )
        problem = judged(
            lambda: settings.problem(self.hyperparameters, has_group=self.group.across is not None)
        )
        roll = self.group.agree(
            problem=problem,
            config={} if problem else settings.agreed(self.hyperparameters, replicas=self.group.size),
        )
        biased = [one.name for one in self.hyperparameters if one.acts_on == "gradient" and one.spread > 0]
        if biased and self._probe is None:
            warnings.warn(
                f"the training loss is biased for {', '.join(biased)}: a value that only lowers its own "
                "loss wins; score on a Probe",
                stacklevel=2,
            )
        sharding.require_replicas(model, self._parameters, optimizer, self.group)
        self._centers = [one.space.to_center(float(one.get())) for one in self.hyperparameters]
        self._starts = [float(one.get()) for one in self.hyperparameters]
        self._velocities = [0.0 for _ in self.hyperparameters]
        self._evidence = [Evidence() for _ in self.hyperparameters]
        self._assign()
        self._watch = self.group.watch(roll, timeout_s) if self.diverges else None

    @property
    def diverges(self) -> bool:
        """Whether replicas can differ at all, so that sync points do anything."""
        explores = any(one.spread > 0 for one in self.hyperparameters)
        return self.group.size > 1 and (explores or self._mode == "local_grad")

    @property
    def steps(self) -> int:
        """The number of optimizer steps taken."""
        return self._steps

    def value(self, name: str) -> float:
        """Returns the value in the middle of a hyperparameter's fan.

        Raises:
            KeyError: there is no hyperparameter of that name.
        """
        for one, center in zip(self.hyperparameters, self._centers, strict=True):
            if one.name == name:
                return self._middle(one, center)
        raise KeyError(name)

    def observe(self, loss: Tensor | float, weight: float = 1.0) -> None:
        """Adds the training loss of a micro-batch, which stands for `weight` samples; does not wait for the
        device."""
        self._meter.observe(loss, weight)

    def after_step(self, base_rates: Mapping[str, float] | None = None) -> SyncReport | None:
        """Counts an optimizer step; at a sync point, converges and returns the report.

        Args:
            base_rates: the schedule's rate by hyperparameter name. Records multiply a factor by it, and while it
                falls the factor does not. `HDETScheduler` passes it.

        Raises:
            SyncError: on every rank; see `headrace_torch.hdet.exchange`.
            StallError: the ranks wait for each other; see `headrace_torch.hdet.watch`.
        """
        self._steps += 1
        if not self.diverges:
            if not self._steps % self.sync_every:
                self._syncs += 1
                self._meter.reset()
            return None
        if self._watch is not None:
            self._watch.step(self._steps)
        if self._first and self._mode == "shared_grad":
            require_shared_gradients(self.group, self._parameters)
        self._first = False
        if self._steps % self.sync_every:
            return None
        began = time.monotonic()
        if self._watch is not None:
            self._watch.meet(self._syncs + 1)
        heard = exchange(
            self.group,
            self._meter,
            self._probe_as_scored(),
            self._parameters,
            sync=self._syncs + 1,
            step=self._steps,
            rates=[rate for _, rate in sorted((base_rates or {}).items())],
            gradients=self._gradients(),
            layout=layout_of(self._optimizer) if self._optimizer_state == "average" else 0,
        )
        sent = self._converge(heard)
        report = self._advance(heard, base_rates or {}, sent, began)
        if self._on_sync is not None:
            self._on_sync(report)
        return report

    def state_dict(self) -> dict[str, Any]:
        """Returns everything that the next step reads, in plain numbers and lists.

        In the middle of an interval replicas differ, so each rank saves and loads its own (with its own
        model, optimizer and generators). At a sync point the state of any rank serves all.
        """
        total, weight = self._meter.read()
        return {
            "version": VERSION,
            "replicas": self.group.size,
            "replica": self.group.rank,
            "steps": self._steps,
            "syncs": self._syncs,
            "names": [one.name for one in self.hyperparameters],
            "centers": list(self._centers),
            "starts": list(self._starts),
            "velocities": list(self._velocities),
            "evidence": [[one.velocity, one.variance] for one in self._evidence],
            "base_before": dict(self._base_before),
            "trend": [self._trend.mean, self._trend.square],
            "loss_total": total,
            "loss_weight": weight,
            "sync_every": self.sync_every,
            "seed": self._seed,
            "design": self._design,
            "parameters": of_sample(self._parameters),
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resumes from a state, after model and optimizer have loaded their own.

        A collective: all ranks load, or all raise.

        Raises:
            ResumeError: another number of replicas, another replica's state or parameters in the middle of an
                interval, or other settings.
        """
        read: list[Parts] = []

        def check() -> str | None:
            differ = self.diverges and bool(int(state.get("steps", 0)) % self.sync_every)
            problem = cannot_resume(state, mine=self.state_dict(), replicas=self.group, differ=differ)
            if problem is None:  # all of it is read before the ranks agree: none may find it unreadable alone
                read.append(Parts.of(state, len(self.hyperparameters)))
            return problem

        problem = judged(check)
        common = {} if problem else {key: state[key] for key in ("steps", "syncs", "centers", "velocities")}
        self.group.agree(problem=problem, config=common, error=ResumeError)
        (parts,) = read
        self._steps, self._syncs = parts.steps, parts.syncs
        self._centers, self._starts, self._velocities = parts.centers, parts.starts, parts.velocities
        self._evidence, self._trend, self._base_before = parts.evidence, parts.trend, parts.base_before
        self._meter.load(parts.loss_total, parts.loss_weight)
        self._assign()

    def _gradients(self) -> Literal["shared", "local", "either"]:
        if self._mode == "shared_grad":
            return "shared"
        # Replicas that meet at every step may have the same gradients, if they have the same data.
        return "local" if self.sync_every > 1 else "either"

    def _converge(self, heard: Exchange) -> int:
        """Averages parameters, buffers and optimizer state; returns the bytes."""
        sources, size = heard.sources, self._bucket_bytes
        sent = average_(self._parameters, self.group, sources=sources, bucket_bytes=size)
        copy_masters(self._masters)
        sent += merge_buffers(self._model, self.group, self._buffers, sources=sources, bucket_bytes=size)
        return sent + merge_optimizer(
            self._optimizer, self.group, self._optimizer_state, sources=sources, bucket_bytes=size
        )

    def _advance(
        self, heard: Exchange, base_rates: Mapping[str, float], sent: int, began: float
    ) -> SyncReport:
        """Moves the centres, assigns the next positions and reports."""
        explored, updated = self._places(), self._steps > self._start_after
        before = self._centers
        self._trend, improving = self._trend.after(heard.losses)
        falling = {name for name, rate in base_rates.items() if rate < self._base_before.get(name, rate)}
        self._base_before = dict(base_rates)
        if updated:
            moves = [
                self._move(number, explored[number], heard.losses, held=improving or one.name in falling)
                for number, one in enumerate(self.hyperparameters)
            ]
        else:
            moves = [
                Moved(center=center, velocity=velocity, signal=0.0, evidence=evidence)
                for center, velocity, evidence in zip(before, self._velocities, self._evidence, strict=True)
            ]
        self._centers = [moved.center for moved in moves]
        self._velocities = [moved.velocity for moved in moves]
        self._evidence = [moved.evidence for moved in moves]
        self._syncs += 1
        self._meter.reset()
        self._assign()
        records = []
        for number, (one, moved, places) in enumerate(
            zip(self.hyperparameters, moves, self._places(), strict=True)
        ):
            base = base_rates.get(one.name, 1.0)
            records.append(
                HyperparameterRecord(
                    name=one.name,
                    center=base * self._middle(one, moved.center),
                    values=tuple(base * self._value(one, moved.center, place) for place in places),
                    explored=tuple(
                        base * self._value(one, before[number], place) for place in explored[number]
                    ),
                    velocity=moved.velocity,
                    signal=moved.signal,
                )
            )
        return SyncReport(
            sync=self._syncs,
            step=self._steps,
            scored_by="loss" if self._probe is None else "probe",
            losses=heard.losses,
            scores=self.rule.scores(heard.losses),
            weights=self.rule.weights(heard.losses),
            hyperparameters=tuple(records),
            left_out=tuple(sorted(set(range(self.group.size)) - set(heard.sources))),
            updated=updated,
            bytes_averaged=sent,
            seconds=time.monotonic() - began,
        )

    def _move(
        self, number: int, places: Sequence[float], losses: Sequence[float | None], *, held: bool
    ) -> Moved:
        one, center = self.hyperparameters[number], self._centers[number]
        if one.spread == 0:
            return Moved(center=center, velocity=0.0, signal=0.0)
        low, high = one.space.bounds()
        return self.rule.move(
            center=center,
            velocity=self._velocities[number],
            places=places,
            losses=losses,
            low=low,
            high=high,
            evidence=self._evidence[number],
            held=held and one.patient,
        )

    def _places(self) -> list[tuple[float, ...]]:
        """Every replica's position, for each hyperparameter, in the interval that follows sync `_syncs`."""
        fan = positions(self.group.size)
        names = [one.name for one in self.hyperparameters]
        orders = assign(self._design, seed=self._seed, sync=self._syncs, names=names, n=self.group.size)
        return [tuple(fan[place] for place in order) for order in orders]

    def _assign(self) -> None:
        """Writes this replica's values."""
        for one, center, places in zip(self.hyperparameters, self._centers, self._places(), strict=True):
            one.set(self._value(one, center, places[self.group.rank]))

    def _value(self, one: ScalarHyperparameter, center: float, place: float) -> float:
        # Without a spread, the value is the original one, not its image under exp(log(·)).
        return self._middle(one, center) if one.spread == 0 else one.space.value(center, place)

    def _middle(self, one: ScalarHyperparameter, center: float) -> float:
        if one.spread == 0:
            return self._starts[self.hyperparameters.index(one)]
        return one.space.value(center)

    def _probe_as_scored(self) -> Probe | None:
        """The probe, run with every hyperparameter switched off that must be off while it runs."""
        if self._probe is None:
            return None
        return SwitchedOff(self._probe, [one for one in self.hyperparameters if one.probe_value is not None])
