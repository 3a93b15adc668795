"""The replicas: which ranks they are, and the few messages that they exchange.

A replica is one copy of the model. Under plain DDP it is one rank. Under hybrid sharding or pipeline
parallelism it is several ranks, the `within` group, each of which belongs to one `across` group that joins
the same part of all replicas:

    across = {the same shard or stage of every replica}     parameters are averaged here
    within = {all ranks of one replica}                     losses are added up here

Nothing here makes decisions. Every method that communicates is a collective: all ranks of both groups call it in
the same order. If one rank alone finds an error, `agree` raises it with the same text on all ranks. That check
comes before any other collective, so that none is entered by only some of the ranks.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from uuid import uuid4

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed.device_mesh import DeviceMesh

from headrace_torch.hdet.errors import HdetConfigError, HdetError
from headrace_torch.hdet.watch import Watch


@dataclass(frozen=True, slots=True)
class _Voice:
    """What one rank contributes to `agree`."""

    rank: int
    problem: str | None
    config: dict[str, object]
    token: str


@dataclass(frozen=True, slots=True)
class Roll:
    """Who took part in an agreement.

    Attributes:
        ranks: the job's ranks in all replicas, in order.
        name: a name for what was agreed on, equal on all ranks and used for nothing else.
    """

    ranks: tuple[int, ...]
    name: str


class ReplicaGroup:
    """The replicas of a training job, seen from one rank.

    Without a process group there is one replica, and every collective is an identity.
    """

    def __init__(
        self, across: dist.ProcessGroup | None = None, *, within: dist.ProcessGroup | None = None
    ) -> None:
        """Joins the replicas.

        Args:
            across: the ranks that hold the same part of each replica; by default all ranks, if there is a
                process group.
            within: the ranks that make up this replica; by default this rank alone.
        """
        if across is None and dist.is_available() and dist.is_initialized():
            across = dist.group.WORLD
        self.across = across
        self.within = within

    @classmethod
    def from_mesh(
        cls, mesh: DeviceMesh, *, replicate: str = "replicate", shard: str = "shard"
    ) -> "ReplicaGroup":
        """Returns the replicas of a two-dimensional mesh, as `fully_shard` takes it for hybrid sharding."""
        return cls(mesh.get_group(replicate), within=mesh.get_group(shard))

    @classmethod
    def of(cls, given: "ReplicaGroup | dist.ProcessGroup | None") -> "ReplicaGroup":
        """Returns the argument as replicas; a process group, or None, stands for its ranks."""
        return given if isinstance(given, ReplicaGroup) else cls(given)

    @property
    def rank(self) -> int:
        """This replica's number."""
        return 0 if self.across is None else dist.get_rank(self.across)

    @property
    def size(self) -> int:
        """N, the number of replicas."""
        return 1 if self.across is None else dist.get_world_size(self.across)

    @property
    def part(self) -> int:
        """Which part of its replica this rank holds; 0 if a replica is one rank."""
        return 0 if self.within is None else dist.get_rank(self.within)

    @property
    def global_rank(self) -> int:
        """This rank's number in the whole job."""
        return dist.get_rank() if dist.is_available() and dist.is_initialized() else 0

    def ranks(self) -> list[int]:
        """The job's ranks in `across`."""
        return [self.global_rank] if self.across is None else dist.get_process_group_ranks(self.across)

    def agree(
        self, *, problem: str | None, config: Mapping[str, object], error: type[HdetError] = HdetConfigError
    ) -> Roll:
        """Raises on every rank, with the same text, if any rank has a problem or the configurations differ.

        Returns the ranks that agreed.

        Raises:
            HdetError: of the type `error`; the text names the ranks unless all say the same.
        """
        mine = _Voice(self.global_rank, problem, dict(config), uuid4().hex)
        voices = [mine]
        for group in (self.within, self.across):
            if group is not None:
                heard: list[list[_Voice] | None] = [None] * dist.get_world_size(group)
                dist.all_gather_object(heard, voices, group=group)
                voices = [voice for part in heard if part for voice in part]
        voices.sort(key=lambda voice: voice.rank)
        if text := _dissent(voices):
            raise error(text)
        return Roll(tuple(sorted({voice.rank for voice in voices})), voices[0].token)

    def watch(self, roll: Roll, timeout_s: float | None) -> Watch | None:
        """Returns a watch over the ranks that agreed; `None` if there is only one rank, or no timeout is wanted."""
        if self.across is None or timeout_s is None or len(roll.ranks) == 1:
            return None
        return Watch(roll.ranks, rank=self.global_rank, name=roll.name, timeout_s=timeout_s)

    def gather(self, values: Sequence[float]) -> list[tuple[float, ...]]:
        """Returns every replica's values, in doubles; each rank of a replica gives its replica's values."""
        if self.across is None:
            return [tuple(values)]
        mine = torch.tensor(values, dtype=torch.float64, device=self.device(self.across))
        everyone = [torch.empty_like(mine) for _ in range(self.size)]
        dist.all_gather(everyone, mine, group=self.across)
        return [tuple(row) for row in torch.stack(everyone).tolist()]

    def add_within(self, values: Sequence[float]) -> tuple[float, ...]:
        """Returns the sums over the ranks of this replica."""
        if self.within is None:
            return tuple(values)
        total = torch.tensor(values, dtype=torch.float64, device=self.device(self.within))
        dist.all_reduce(total, group=self.within)
        return tuple(total.tolist())

    def sum_(self, flat: Tensor) -> None:
        """Adds up a tensor over the replicas, in place."""
        if self.across is not None:
            dist.all_reduce(flat, group=self.across)

    def copy_from_first_(self, flat: Tensor) -> None:
        """Overwrites a tensor with replica 0's."""
        if self.across is not None:
            dist.broadcast(flat, group=self.across, group_src=0)

    @staticmethod
    def device(group: dist.ProcessGroup) -> torch.device:
        """The device on which a group's backend needs its tensors."""
        if "nccl" in dist.get_backend(group):
            return torch.device("cuda", torch.cuda.current_device())
        return torch.device("cpu")


def judged(check: Callable[[], str | None]) -> str | None:
    """Returns what a rank's check of its own input finds wrong; a check that raises counts as a finding.

    A setting of the wrong type, or something that is not a state, must not end one rank while the others wait in
    `agree`.
    """
    try:
        return check()
    except Exception as error:  # noqa: BLE001  whatever it is, the other ranks wait for a word
        return f"the argument cannot be read: {type(error).__name__}: {error}"


def _dissent(voices: Sequence[_Voice]) -> str | None:
    """Combines the objections of ranks, or their differences, into one text."""
    problems = {voice.rank: voice.problem for voice in voices if voice.problem is not None}
    if problems:
        if len(problems) == len(voices) and len(set(problems.values())) == 1:
            return next(iter(problems.values()))
        return "; ".join(f"rank {rank}: {text}" for rank, text in problems.items())
    first: dict[str, tuple[int, object]] = {}
    for voice in voices:
        for key, theirs in voice.config.items():
            rank, ours = first.setdefault(key, (voice.rank, theirs))
            # Compared as text, in which NaN is equal to itself.
            if repr(ours) != repr(theirs):
                return (
                    f"{key} differs between ranks: rank {rank} has {ours!r}, rank {voice.rank} has {theirs!r}; "
                    "give all ranks the same"
                )
    return None
