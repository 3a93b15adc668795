"""One tuple of degrees as a level 2 problem, and a bound that no assignment of it can beat.

A `Costing` belongs to one request and caches what tuples share: times depend only on (m, e, b), memory and tails
also on (d, m, o, e). That makes thousands of tuples cheap.
"""

from dataclasses import dataclass, field, replace
from itertools import pairwise
from math import ceil

from headrace_services.planner.assignment import solve
from headrace_services.planner.cluster import Cluster
from headrace_services.planner.collectives import hidden_s
from headrace_services.planner.degrees import (
    Degrees,
    data_group,
    expert_group,
    replica_group,
    stage_links,
    stages_part,
    tensor_group,
)
from headrace_services.planner.layer_cost import BYTES, LayerTimes, Shape, layer_times
from headrace_services.planner.memory import (
    Gradients,
    ZeroStage,
    checkpoint_bytes,
    expert_shards,
    local_parameters,
    saved_bytes,
    static_bytes,
)
from headrace_services.planner.model import AttentionKernel, Layer, LayerKind, Model
from headrace_services.planner.problem import Link, Problem, Recompute
from headrace_services.planner.schedules import Schedule, fill_share, in_flight
from headrace_services.planner.stage_cost import gradient_s, optimizer_s, transfer_s

MOST_PASSES = 1 << 21
"""The maximum of s·µ·v: beyond it, simulating a tuple would take minutes and gigabytes."""
MOST_SEQUENCES = 1 << 18
"""The maximum of a batch. More only repeats the same micro-batches, and every one is simulated."""
USABLE_MEMORY = 0.94
"""Share of a device's memory for the job; the rest is for the context, communication buffers and fragmentation."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Request:
    """The question: a model on a cluster with a global batch of sequences, and the settings that are not searched."""

    model: Model
    cluster: Cluster
    batch: int
    schedule: Schedule = Schedule.ONE_F_ONE_B
    chunks: int = 1
    """v: model chunks per stage, only for the interleaved schedule."""
    zero: ZeroStage = ZeroStage.OPTIMIZER
    gradients: Gradients = Gradients.FP32
    sequence_parallel: bool = True
    attention: AttentionKernel = AttentionKernel.FLASH
    usable_memory: float = USABLE_MEMORY

    @property
    def capacity_bytes(self) -> int:
        """The memory of a device that a plan may use."""
        return int(self.cluster.device.memory_bytes * self.usable_memory)


@dataclass(frozen=True, slots=True, kw_only=True)
class Held:
    """What a layer costs once, however many micro-batches there are: bytes on a device, seconds of an iteration."""

    static_bytes: int
    step_s: float
    reduce_s: float
    """The collective of gradients, over the ranks that hold the same parameters."""
    gather_s: float
    """The collective of updated parameters, if ranks share the optimizer."""


@dataclass(slots=True)
class Costing:
    """Computes the costs of the tuples of one request."""

    request: Request
    _times: dict[tuple[int, int, int], list[LayerTimes]] = field(init=False, default_factory=dict)
    _held: dict[tuple[int, int, int, int, bool], list[Held]] = field(init=False, default_factory=dict)
    _kinds: list[tuple[Layer, int]] = field(init=False)
    _kind_of: list[int] = field(init=False)

    def __post_init__(self) -> None:
        distinct = list(dict.fromkeys(self.request.model.layers))
        index = {layer: number for number, layer in enumerate(distinct)}
        self._kind_of = [index[layer] for layer in self.request.model.layers]
        self._kinds = [(layer, self._kind_of.count(number)) for number, layer in enumerate(distinct)]

    def shape(self, degrees: Degrees) -> Shape:
        """The shape in which a layer processes a micro-batch of this tuple."""
        request = self.request
        return Shape(
            micro_batch=degrees.micro_batch(request.batch),
            sequence=request.model.sequence,
            tensor=tensor_group(degrees, request.cluster),
            expert=expert_group(degrees, request.cluster),
            sequence_parallel=request.sequence_parallel,
            attention=request.attention,
        )

    def times(self, degrees: Degrees) -> list[LayerTimes]:
        """Seconds of each kind of layer."""
        key = (degrees.m, degrees.e, degrees.micro_batch(self.request.batch))
        if key not in self._times:
            shape = self.shape(degrees)
            self._times[key] = [
                layer_times(layer, _met(shape, layer), self.request.cluster) for layer, _ in self._kinds
            ]
        return self._times[key]

    def held(self, degrees: Degrees) -> list[Held]:
        """What each kind of layer costs once."""
        key = (degrees.d, degrees.m, degrees.o, degrees.e, degrees.s == 1)
        if key not in self._held:
            self._held[key] = [self._once(layer, degrees) for layer, _ in self._kinds]
        return self._held[key]

    def bound_s(self, degrees: Degrees) -> float | None:
        """A time that no assignment of this tuple beats: perfect balance, nothing recomputed. None if it cannot
        fit.

        A tuple that does not fit even with every layer recomputed and any balance is certainly infeasible.
        """
        times, held = self.times(degrees), self.held(degrees)
        static = sum(count * one.static_bytes for (_, count), one in zip(self._kinds, held, strict=True))
        largest = max(one.static_bytes for one in held)
        capacity = self.request.capacity_bytes
        if static > degrees.s * capacity or largest > capacity:
            return None
        sharded = [self._sharded_s(layer, degrees) for layer, _ in self._kinds]
        gather = [2 * before + after for before, after in sharded]
        work = [one.forward_s + one.backward_s + more for one, more in zip(times, gather, strict=True)]
        total = sum(count * t for (_, count), t in zip(self._kinds, work, strict=True)) + self._received_s(
            degrees
        )
        weight = sum(count * one.weight_s for (_, count), one in zip(self._kinds, times, strict=True))
        tails = self._tails_s(held, times)
        alpha, omega = self._fill(degrees)
        rest = degrees.mu - alpha
        steady = max((rest * total + tails) / degrees.s, rest * max(work) + min(one.step_s for one in held))
        return alpha * total - omega * weight + steady + self.request.cluster.device.efficiencies.iteration_s

    def problem(
        self,
        degrees: Degrees,
        *,
        recompute: Recompute = Recompute.FREE,
        equal: bool = False,
        versions: bool = False,
    ) -> tuple[Problem, tuple[tuple[int, ...], ...]] | None:
        """The level 2 problem, and for every chunk (stage by stage) the model's layers, in the problem's order.

        None if the schedule does not allow the tuple, or would have more than `MOST_PASSES` passes.
        """
        request = self.request
        links = self.links(degrees, versions=versions)
        s, v = degrees.s, self.chunks(degrees)
        if s * v * degrees.mu > MOST_PASSES:
            return None
        boundaries: tuple[int, ...] | None = None
        places = [tuple(range(len(links)))]
        if v > 1:
            if degrees.mu % s or s * v > len(links):
                return None
            edges = equal_boundaries(request.model, s * v) if equal else _balanced(links, s * v)
            pieces = [tuple(range(a, b)) for a, b in pairwise(edges)]
            places = [pieces[chunk * s + stage] for stage in range(s) for chunk in range(v)]
            sizes = [sum(len(places[stage * v + chunk]) for chunk in range(v)) for stage in range(s)]
            boundaries = tuple(sum(sizes[:stage]) for stage in range(s + 1))
        elif equal:
            boundaries = equal_boundaries(request.model, s)
        order = [index for piece in places for index in piece]
        receive = self._receives_s(degrees)
        problem = Problem(
            links=tuple(links[index] for index in order),
            stages=s,
            micro_batches=degrees.mu,
            in_flight=in_flight(request.schedule, s, degrees.mu, v),
            capacity_bytes=request.capacity_bytes,
            receive_forward_s=receive,
            receive_backward_s=(*receive[1:], receive[0]),
            fill=self._fill(degrees),
            chunks=v,
            recompute=recompute,
            boundaries=boundaries,
        )
        return problem, tuple(places)

    def links(self, degrees: Degrees, *, versions: bool = False) -> list[Link]:
        """Every layer as a link. With `versions`, every micro-batch in flight keeps its own copy of the weights."""
        shape = self.shape(degrees)
        kinds = []
        for (layer, _), times, held in zip(self._kinds, self.times(degrees), self.held(degrees), strict=True):
            saved = ceil(saved_bytes(layer, _met(shape, layer)))
            kept = min(ceil(checkpoint_bytes(layer, shape)), saved) if layer.recomputable else saved
            copy = 0
            if versions:
                copy = ceil(BYTES * sum(local_parameters(self._own(layer, degrees), degrees)))
            before, after = self._sharded_s(layer, degrees)
            behind_backward, behind_forward = self._behind_s(times)
            kinds.append(
                Link(
                    forward_s=times.forward_s + before,
                    backward_s=times.backward_s + before + after,
                    recompute_s=times.recompute_s,
                    weight_s=times.weight_s,
                    # The copy in use is among those in flight.
                    static_bytes=held.static_bytes - copy,
                    saved_bytes=saved + copy,
                    kept_bytes=kept + copy,
                    tail_s=held.step_s,
                    reduce_s=held.reduce_s,
                    reduce_behind_s=behind_backward,
                    gather_s=held.gather_s,
                    gather_behind_s=behind_forward,
                    recomputable=layer.recomputable,
                )
            )
        return [kinds[kind] for kind in self._kind_of]

    def communication_s(self, degrees: Degrees, layer: int) -> float:
        """Tensor- and expert-parallel communication of one layer for one micro-batch, forward and backward."""
        return self.times(degrees)[self._kind_of[layer]].communication_s

    def chunks(self, degrees: Degrees) -> int:
        """v for this tuple."""
        interleaves = self.request.schedule is Schedule.INTERLEAVED and degrees.s > 1
        return self.request.chunks if interleaves else 1

    def _fill(self, degrees: Degrees) -> tuple[float, float]:
        return fill_share(self.request.schedule, degrees.s, degrees.mu, self.chunks(degrees))

    def _once(self, layer: Layer, degrees: Degrees) -> Held:
        request, cluster = self.request, self.request.cluster
        layer = self._own(layer, degrees)
        dense, expert = local_parameters(layer, degrees)
        step = optimizer_s(dense / degrees.o + expert / expert_shards(degrees), cluster)
        reduce = gather = 0.0
        if request.zero is not ZeroStage.PARAMETERS:
            parts = (
                (dense, data_group(degrees, cluster), degrees.o),
                (expert, replica_group(degrees, cluster), expert_shards(degrees)),
            )
            for parameters, ranks, shards in parts:
                whole = gradient_s(parameters, ranks, cluster, bytes_each=request.gradients.bytes)
                reduce += whole if shards == 1 else whole / 2
                gather += 0.0 if shards == 1 else gradient_s(parameters, ranks, cluster) / 2
        return Held(
            static_bytes=ceil(static_bytes(layer, degrees, request.zero, request.gradients)),
            step_s=step,
            reduce_s=reduce,
            gather_s=gather,
        )

    def _own(self, layer: Layer, degrees: Degrees) -> Layer:
        """A layer with only its own parameters: a single stage holds a tied matrix once, as part of the embedding."""
        tied = self.request.model.tied and layer.kind is LayerKind.HEAD and degrees.s == 1
        return replace(layer, parameters_split=0) if tied else layer

    def _behind_s(self, times: LayerTimes) -> tuple[float, float]:
        """The time of gradient collectives that a layer's backward pass hides, and that of parameter collectives
        that its forward pass hides."""
        cluster = self.request.cluster
        constants = cluster.device.efficiencies
        return (
            hidden_s(times.backward_s, constants.overlap_gradients, cluster),
            hidden_s(times.forward_s, constants.overlap_optimizer, cluster),
        )

    def _tails_s(self, held: list[Held], times: list[LayerTimes]) -> float:
        """A lower bound for the sum of all stages' tails: what hides behind a stage also hides behind the whole
        chain."""
        steps = reduce = gather = 0.0
        for (_, count), one, passes in zip(self._kinds, held, times, strict=True):
            behind_backward, behind_forward = self._behind_s(passes)
            steps += count * one.step_s
            reduce += count * (one.reduce_s - behind_backward)
            gather += count * (one.gather_s - behind_forward)
        return steps + max(reduce, 0.0) + max(gather, 0.0)

    def _sharded_s(self, layer: Layer, degrees: Degrees) -> tuple[float, float]:
        """Only for ZeRO-3, per micro-batch: a gather of parameters before each pass, and a scatter of gradients
        after."""
        request, cluster = self.request, self.request.cluster
        if request.zero is not ZeroStage.PARAMETERS:
            return 0.0, 0.0
        dense, expert = local_parameters(self._own(layer, degrees), degrees)
        parts = ((dense, data_group(degrees, cluster)), (expert, replica_group(degrees, cluster)))
        gather, scatter = (
            sum(gradient_s(parameters, ranks, cluster, bytes_each=size) for parameters, ranks in parts) / 2
            for size in (BYTES, request.gradients.bytes)
        )
        return gather, scatter

    def _receives_s(self, degrees: Degrees) -> tuple[float, ...]:
        """Per stage, the time to receive one micro-batch's activations from the previous stage, for all chunks.

        Gradients travel the same way back. Only chunks wrap around from the last stage to the first.
        """
        s, v = degrees.s, self.chunks(degrees)
        if s == 1:
            return (0.0,)
        cluster, shape = self.request.cluster, self.shape(degrees)
        hidden = self.request.model.layers[0].hidden
        crossing = (float(v > 1 and cluster.nodes > 1), *map(float, stages_part(degrees, cluster)))
        ways = list(zip(crossing, stage_links(degrees, cluster), strict=True))
        # Most stages share one of a few routes.
        known = {way: v * transfer_s(hidden, shape, way[0], cluster, way[1]) for way in set(ways)}
        return known[ways[0]] if v > 1 else 0.0, *(known[way] for way in ways[1:])

    def _received_s(self, degrees: Degrees) -> float:
        """The time of all receives of one micro-batch."""
        return 2 * sum(self._receives_s(degrees))


def equal_boundaries(model: Model, stages: int) -> tuple[int, ...]:
    """The usual split: equal numbers of blocks (the first stages take one more), embedding first, head last."""
    blocks = [i for i, layer in enumerate(model.layers) if layer.kind is LayerKind.BLOCK]
    first = blocks[0] if blocks else 0
    share, over = divmod(len(blocks), stages)
    edges = [0]
    position = first
    for stage in range(stages - 1):
        position += share + (stage < over)
        edges.append(position)
    return (*edges, len(model.layers))


def _met(shape: Shape, layer: Layer) -> Shape:
    """The shape for a layer whose scores may be treated differently."""
    return shape if layer.attention is None else replace(shape, attention=layer.attention)


def _balanced(links: list[Link], pieces: int) -> tuple[int, ...]:
    """The split of a chain into pieces whose longest is as short as possible."""
    problem = Problem(
        links=tuple(links),
        stages=pieces,
        micro_batches=1_000_000,
        in_flight=(1,) * pieces,
        capacity_bytes=1 << 62,
        receive_forward_s=(0.0,) * pieces,
        receive_backward_s=(0.0,) * pieces,
        recompute=Recompute.NONE,
    )
    solution = solve(problem)
    if solution is None:
        raise ValueError("a chain without a memory limit always splits")
    return solution.boundaries
