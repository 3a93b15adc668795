"""The answer: degrees, stages with their layers and memory, and the iteration's time with its parts."""

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

from headrace_services.planner.cluster import OVERLAPS
from headrace_services.planner.costing import Costing, Request
from headrace_services.planner.degrees import Degrees
from headrace_services.planner.memory import bytes_per_parameter
from headrace_services.planner.model import VOCABULARY_UNIT, AttentionKernel, padded_vocabulary
from headrace_services.planner.problem import Problem, Solution
from headrace_services.planner.simulator import (
    Simulation,
    StageTimes,
    closed_form_s,
    lower_bound_s,
    paper_s,
    simulate,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class StageMemory:
    """Bytes of one device of a stage at its peak."""

    static_bytes: int
    """Parameters, gradients, optimizer state."""
    activation_bytes: int
    """Activations of all micro-batches in flight."""
    rebuild_bytes: int
    """Space to recompute one layer; 0 if none is recomputed."""

    @property
    def total_bytes(self) -> int:
        """The sum of the three."""
        return self.static_bytes + self.activation_bytes + self.rebuild_bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class StagePlan:
    """One stage: its layers chunk by chunk, those it recomputes, its times and its memory."""

    chunks: tuple[tuple[int, ...], ...]
    recomputed: tuple[int, ...]
    times: StageTimes
    recompute_s: float
    """The part of a backward pass that recomputes activations."""
    receive_forward_s: float
    receive_backward_s: float
    """The parts of its passes in which it waits for a neighbour's activations and gradients."""
    communication_s: float
    """The part of both passes that is tensor- and expert-parallel collectives."""
    saved_bytes: int
    """Activations of one micro-batch (of one chunk, if there are several)."""
    memory: StageMemory
    in_flight: int

    @property
    def layers(self) -> tuple[int, ...]:
        """All its layers, ascending."""
        return tuple(sorted(layer for chunk in self.chunks for layer in chunk))


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """Seconds of an iteration on its slowest stage; they add up to the simulated time."""

    compute_s: float
    communication_s: float
    """Tensor- and expert-parallel collectives."""
    transfer_s: float
    recompute_s: float
    bubble_s: float
    tail_s: float
    """Gradient collectives and the optimizer's step."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """A way to train, and its cost."""

    request: Request
    mode: str
    degrees: Degrees
    stages: tuple[StagePlan, ...]
    analytic_s: float
    """The time that level 2 minimised."""
    simulated_s: float
    lower_bound_s: float
    """A lower bound: no run of these stages is faster."""
    paper_s: float
    """µ·max T_j and the tail, the paper's approximation."""
    mfu: float
    """Model FLOPs (full attention, not causal; nothing recomputed) divided by the cluster's peak."""
    hfu: float
    """Like MFU, but recomputed layers count again."""
    breakdown: Breakdown
    exact: bool

    @property
    def gap(self) -> float:
        """How far the simulated time can be from the best run of these stages, as a share of the bound."""
        return self.simulated_s / self.lower_bound_s - 1.0

    @property
    def micro_batch(self) -> int:
        """b, sequences per micro-batch."""
        return self.degrees.micro_batch(self.request.batch)

    @property
    def peak_bytes(self) -> int:
        """Memory of the fullest device."""
        return max(stage.memory.total_bytes for stage in self.stages)

    @property
    def recomputed(self) -> tuple[int, ...]:
        """All layers that are recomputed."""
        return tuple(sorted(layer for stage in self.stages for layer in stage.recomputed))

    @property
    def notes(self) -> tuple[str, ...]:
        """What the plan assumes, in words: the memory per parameter, added words, what is unknown."""
        request, found = self.request, []
        each = bytes_per_parameter(request.zero, 1, request.gradients)
        found.append(
            f"gradients are kept in {request.gradients.value}: {each:.0f} bytes a parameter before sharding"
        )
        words = next((layer.vocabulary for layer in request.model.layers if layer.vocabulary), 0)
        padded = padded_vocabulary(words, self.degrees.m)
        if padded != words:
            found.append(
                f"the vocabulary of {words:g} is padded to {padded:g}, a multiple of {VOCABULARY_UNIT} for each of "
                f"{self.degrees.m} tensor ranks"
            )
        sizes = request.model.layers[0].profile.micro_batches if request.model.layers[0].profile else ()
        if sizes and self.micro_batch not in sizes:
            among = ", ".join(map(str, sizes))
            found.append(
                f"micro-batches of {self.micro_batch} were not measured; times follow those of {among}"
            )
        for kernel in AttentionKernel:
            own = [i for i, layer in enumerate(request.model.layers) if layer.attention is kernel]
            if own:
                found.append(f"layers {spans(own)} have {kernel.value} attention of their own")
        links = request.cluster.links
        if links is not None:
            found.append(
                f"links between nodes have {links.slowest / 1e9:.3g} to {links.fastest / 1e9:.3g} GB/s a device, as "
                "the cluster's description says; ranks are numbered in the order of its nodes"
            )
        overlapped = [name for name in OVERLAPS if getattr(request.cluster.device.efficiencies, name)]
        if overlapped:
            hidden = ", ".join(name.removeprefix("overlap_") for name in overlapped)
            found.append(f"the job hides communication behind computation: {hidden}")
        return (*found, *request.model.notes)

    def run(self) -> Simulation:
        """The simulation behind the plan."""
        return run_stages(self.request, self.degrees, self.stages)


def spans(layers: Sequence[int]) -> str:
    """Runs of layers: 0–12, or 0–3 24–27."""
    runs: list[list[int]] = []
    for layer in layers:
        if runs and layer == runs[-1][1] + 1:
            runs[-1][1] = layer
        else:
            runs.append([layer, layer])
    return " ".join(f"{a}" if a == b else f"{a}–{b}" for a, b in runs)


def run_stages(request: Request, degrees: Degrees, stages: Sequence[StagePlan]) -> Simulation:
    """Simulates the request's schedule over these stages."""
    chunks = len(stages[0].chunks)
    return simulate(request.schedule, [stage.times for stage in stages], degrees.mu, chunks)


def assemble(
    costing: Costing,
    mode: str,
    degrees: Degrees,
    problem: Problem,
    places: tuple[tuple[int, ...], ...],
    solution: Solution,
    *,
    limit_s: float = float("inf"),
) -> Plan | None:
    """The plan of a level 2 solution, simulated; None if no run of its stages is faster than the limit."""
    request = costing.request
    stages = _stages(costing, degrees, problem, places, solution)
    times = [stage.times for stage in stages]
    fixed = request.cluster.device.efficiencies.iteration_s
    bound = lower_bound_s(request.schedule, times, degrees.mu, problem.chunks) + fixed
    if bound >= limit_s:
        return None
    simulation = run_stages(request, degrees, stages)
    total = simulation.total_s + fixed
    peak = request.cluster.devices * request.cluster.device.peak_flops
    flops = request.model.model_flops(request.batch)
    again = sum(
        request.model.layers[i].forward_flops(request.model.sequence) for s in stages for i in s.recomputed
    )
    again *= request.batch * request.model.sequence
    return Plan(
        request=request,
        mode=mode,
        degrees=degrees,
        stages=stages,
        analytic_s=closed_form_s(times, degrees.mu, problem.fill) + fixed,
        simulated_s=total,
        lower_bound_s=bound,
        paper_s=paper_s(times, degrees.mu) + max(one.tail_s for one in times) + fixed,
        mfu=flops / (total * peak),
        hfu=(flops + again) / (total * peak),
        breakdown=_breakdown(degrees, stages, total),
        exact=solution.exact,
    )


def _stages(
    costing: Costing,
    degrees: Degrees,
    problem: Problem,
    places: tuple[tuple[int, ...], ...],
    solution: Solution,
) -> tuple[StagePlan, ...]:
    order = [index for piece in places for index in piece]
    again = set(solution.recomputed)
    reserve = max((k.saved_bytes - k.kept_bytes for k in problem.links if k.recomputable), default=0)
    stages = []
    for j, (a, b) in enumerate(pairwise(solution.boundaries)):
        span = range(a, b)
        links = problem.links
        v = problem.chunks
        recompute = sum(links[i].recompute_s for i in span if i in again)
        in_stage = any(i in again for i in span)
        saved = sum(links[i].kept_bytes if i in again else links[i].saved_bytes for i in span)
        static = sum(links[i].static_bytes for i in span)
        used = problem.stage_bytes(j, static, saved, in_stage, reserve)
        rebuild = reserve if in_stage else 0
        pieces = tuple(places[j * v : (j + 1) * v]) if v > 1 else (tuple(order[a:b]),)
        stages.append(
            StagePlan(
                chunks=pieces,
                recomputed=tuple(sorted(order[i] for i in span if i in again)),
                times=StageTimes(
                    forward_s=sum(links[i].forward_s for i in span) + problem.receive_forward_s[j],
                    backward_s=sum(links[i].backward_s for i in span)
                    + recompute
                    + problem.receive_backward_s[j],
                    weight_s=sum(links[i].weight_s for i in span),
                    tail_s=problem.stage_tail_s(links[a:b]),
                ),
                recompute_s=recompute,
                receive_forward_s=problem.receive_forward_s[j],
                receive_backward_s=problem.receive_backward_s[j],
                communication_s=sum(costing.communication_s(degrees, order[i]) for i in span),
                saved_bytes=saved // v,
                memory=StageMemory(
                    static_bytes=static,
                    activation_bytes=used - static - rebuild,
                    rebuild_bytes=rebuild,
                ),
                in_flight=problem.in_flight[j],
            )
        )
    return tuple(stages)


def _breakdown(degrees: Degrees, stages: Sequence[StagePlan], total: float) -> Breakdown:
    mu = degrees.mu
    slowest = max(range(len(stages)), key=lambda j: mu * stages[j].times.total_s + stages[j].times.tail_s)
    stage = stages[slowest]
    transfer = stage.receive_forward_s + stage.receive_backward_s
    compute = stage.times.total_s - stage.recompute_s - stage.communication_s - transfer
    bubble = total - mu * stage.times.total_s - stage.times.tail_s
    return Breakdown(
        compute_s=mu * compute,
        communication_s=mu * stage.communication_s,
        transfer_s=mu * transfer,
        recompute_s=mu * stage.recompute_s,
        bubble_s=bubble,
        tail_s=stage.times.tail_s,
    )
