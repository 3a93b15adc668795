"""What the job runs on: equal devices in equal nodes, two tiers of links, and which share of each peak is reached.

Units are bytes, bytes per second (one way, per device) and FLOP per second throughout. A device that two stages or
rings share is not modelled: every device has its own share of the node's network.
"""

from collections.abc import Mapping
from dataclasses import dataclass, fields, replace
from enum import StrEnum
from typing import Any, Final

from headrace_services.planner.checking import Checker
from headrace_services.planner.links import NodeLinks, links_from


class Topology(StrEnum):
    """How nodes are connected: through switches, or as a ring in which every hop is paid."""

    SWITCH = "switch"
    RING = "ring"


@dataclass(frozen=True, slots=True, kw_only=True)
class MeasuredShape:
    """One layer that ran in exactly this shape, and how much longer it took than the formulas say.

    Which kernels a library picks for a shape, and how fast they are launched, is not smooth in its sizes; if a
    shape was measured, the measurement applies. It says nothing about other shapes.
    """

    kind: str
    """`block` or `head`."""
    hidden: float
    parameters: float
    """The parameters of the layer that tensor parallelism divides: distinguishes a plain block from a gated one."""
    heads: float
    """0 for a head."""
    sequence: float
    tensor: float
    micro_batch: float
    attention: str
    """How scores were treated; empty for a head, which has no scores."""
    sequence_parallel: bool
    factor: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Efficiencies:
    """What a fit determines: shares of peaks, fixed costs in seconds. `data/efficiencies.json` says from which
    data."""

    gemm: float
    """Share of peak FLOP/s that a large product reaches."""
    gemm_rows: float
    """Rows (tokens) at which a product runs at half of that."""
    gemm_width: float
    """Inner or outer width at which a product runs at half of that."""
    attention: float
    """Share of peak FLOP/s of the score and value products."""
    memory: float
    """Share of memory bandwidth of element-wise kernels."""
    link: float
    """Share of link bandwidth of collectives within a node."""
    network: float
    """Share of network bandwidth of tensor-parallel collectives across nodes."""
    gradients: float
    """Share of the bandwidth of gradient collectives."""
    gradients_shared: float
    """A further share if several devices of a node belong to one data-parallel ring. Empirical."""
    transfer: float
    """Share of network bandwidth of transfers between stages."""
    launch_s: float
    """Minimum time of a block's forward pass: its kernels must be launched."""
    launch_tensor_s: float
    """Additional minimum time under tensor parallelism, because the collectives are launched as well."""
    launch_rank_s: float
    """Additional minimum time per tensor rank."""
    launch_unfused_s: float
    """Additional minimum time if Megatron's fused softmax does not apply (batch·heads per rank not a multiple of
    4)."""
    launch_backward: float
    """Minimum time of a backward pass, relative to that of a forward pass."""
    head_traffic: float
    """Bytes moved per logit by the loss, forward and backward."""
    head_s: float
    """Minimum time of the head, forward and backward."""
    collective_s: float
    """Latency of one step of a ring."""
    transfer_s: float
    """Latency of a transfer within a node."""
    transfer_network_s: float
    """Latency of a transfer between nodes."""
    iteration_s: float
    """Fixed time of an iteration."""
    optimizer: float
    """Share of memory bandwidth of the optimizer's step."""
    overlap_gradients: float = 0.0
    """Share of the last backward pass during which gradients are reduced (α_grad of H²O, section 2)."""
    overlap_tensor: float = 0.0
    """Share of a layer's products during which its tensor-parallel collectives run (α_tp)."""
    overlap_optimizer: float = 0.0
    """Share of the first forward pass during which updated parameters are gathered (α_opt)."""
    overlap_slowdown: float = 1.0
    """The factor by which a collective takes longer while it overlaps."""
    shapes: tuple[MeasuredShape, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Device:
    """One kind of accelerator, with its node."""

    name: str
    peak_flops: float
    memory_bytes: float
    memory_bandwidth: float
    link_bandwidth: float
    network_bandwidth: float
    """Per device: the node's network divided by its devices."""
    devices_per_node: int
    topology: Topology
    efficiencies: Efficiencies
    calibrated: bool = False
    source: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Cluster:
    """A number of equal devices."""

    device: Device
    devices: int
    links: NodeLinks | None = None
    """Links between nodes, if they are not all alike; they then replace the device's network bandwidth."""

    @property
    def name(self) -> str:
        """Device and count, in the form that `catalogue.cluster` reads."""
        return f"{self.device.name}-{self.devices}"

    @property
    def node(self) -> int:
        """The devices of a node that this cluster uses."""
        return min(self.device.devices_per_node, self.devices)

    @property
    def nodes(self) -> int:
        """The number of nodes; the last one may be partly used."""
        return -(-self.devices // self.device.devices_per_node)

    def calibrated(self, efficiencies: Efficiencies) -> "Cluster":
        """The same cluster with constants that were measured on it."""
        return replace(self, device=replace(self.device, efficiencies=efficiencies, calibrated=True))

    def with_efficiencies(self, efficiencies: Efficiencies) -> "Cluster":
        """The same cluster with other constants."""
        return replace(self, device=replace(self.device, efficiencies=efficiencies))


MOST_DEVICES: Final = 1_000_000
OVERLAPS: Final = ("overlap_gradients", "overlap_tensor", "overlap_optimizer")
"""The three patterns of communication that can hide behind computation (H²O, section 2)."""
_DEVICE_LIMITS: Mapping[str, tuple[float, float, str]] = {
    "peak_flops": (1e12, 1e17, "FLOP/s"),
    "memory_bytes": (1e9, 1e13, "bytes"),
    "memory_bandwidth": (1e10, 1e14, "bytes/s"),
    "link_bandwidth": (1e8, 1e13, "bytes/s"),
    "network_bandwidth": (1e7, 1e13, "bytes/s"),
}
"""The plausible range: a GPU of 40 kB or of 40 PB is a wrong unit."""


def device_from_description(
    name: str, description: Mapping[str, Any], efficiencies: Mapping[str, Efficiencies]
) -> Device:
    """The device of a description. Raises InvalidFieldError with every field at fault."""
    check = Checker("cluster")
    own = {"source", "network_cards", "devices_per_node", "topology", "efficiencies", "calibrated", "devices"}
    own |= {"node_links", "tiers"}
    check.known(description, own | _DEVICE_LIMITS.keys())
    apart = "node_links" in description or "tiers" in description
    numbers = {
        field: check.number(
            description,
            field,
            low=low,
            high=high,
            unit=unit,
            # Not needed if every link is given.
            default=low if apart and field == "network_bandwidth" else None,
        )
        for field, (low, high, unit) in _DEVICE_LIMITS.items()
    }
    per_node = check.integer(description, "devices_per_node", low=1, high=1024)
    cards = check.integer(description, "network_cards", low=1, high=1024, default=per_node)
    topology = description.get("topology", "switch")
    if topology not in list(Topology):
        check.fail("topology", topology, "is not a topology", "Write switch or ring.")
    if apart and topology == Topology.RING:
        message = "cannot be combined with links between nodes, which already include the distances"
        check.fail("topology", topology, message, "Leave the topology out.")
    profile = description.get("efficiencies", next(iter(efficiencies)))
    own_constants = isinstance(profile, Mapping)
    if not own_constants and profile not in efficiencies:
        check.fail("efficiencies", profile, "is not a profile", f"There are {', '.join(efficiencies)}.")
    check.done()
    calibrated = own_constants or bool(description.get("calibrated", False))
    constants = efficiencies_from(profile) if own_constants else lent(efficiencies[profile], cards, per_node)
    return Device(
        name=name,
        devices_per_node=per_node,
        topology=Topology(topology),
        # Shares of peaks may be borrowed from another device, but not the times of its kernels.
        efficiencies=constants if calibrated else replace(constants, shapes=()),
        calibrated=calibrated,
        source=str(description.get("source", "")),
        **numbers,
    )


def lent(constants: Efficiencies, cards: int, per_node: int) -> Efficiencies:
    """Constants for a device with this many network cards per node.

    Rings with several ranks on a node are slow if two devices share a card, according to measurements. If each
    device has its own card, they are not (Narayanan et al. SC'21, table 1: the error is 3% without that factor,
    and 13% with it).
    """
    return replace(constants, gradients_shared=1.0) if cards >= per_node else constants


def checked_cluster(device: Device, devices: int, description: Mapping[str, Any] | None = None) -> Cluster:
    """A cluster of whole nodes (or of a part of one), with the links of a description. Raises InvalidFieldError."""
    check = Checker("cluster")
    check.integer({"devices": devices}, "devices", low=1, high=MOST_DEVICES)
    if devices > device.devices_per_node and devices % device.devices_per_node:
        whole = devices // device.devices_per_node * device.devices_per_node
        message = f"is not a whole number of nodes of {device.devices_per_node}"
        check.fail("devices", devices, message, f"Use {whole} or {whole + device.devices_per_node}.")
    check.done()
    cluster = Cluster(device=device, devices=devices)
    links = links_from(check, description or {}, cluster.nodes)
    check.done()
    return replace(cluster, links=links if cluster.nodes > 1 else None)


def efficiencies_from(values: Mapping[str, Any]) -> Efficiencies:
    """Constants by name, with the measured shapes. Raises InvalidFieldError."""
    check = Checker("efficiencies")
    names = [field.name for field in fields(Efficiencies)]
    check.known(values, names)
    optional = (*OVERLAPS, "overlap_slowdown", "shapes")
    numbers = {name: check.number(values, name, low=0.0, high=1e6) for name in names if name not in optional}
    numbers |= {name: check.number(values, name, low=0.0, high=1.0) for name in OVERLAPS if name in values}
    if "overlap_slowdown" in values:
        numbers["overlap_slowdown"] = check.number(values, "overlap_slowdown", low=1.0, high=10.0)
    listed = values.get("shapes", [])
    if not isinstance(listed, list | tuple):
        check.fail("shapes", listed, "must be a list", "Write the shapes that calibration found, or none.")
        listed = []
    shapes = tuple(_shape(check.below(f"shapes[{i}]"), one) for i, one in enumerate(listed))
    check.done()
    return Efficiencies(**numbers, shapes=shapes)


def _shape(check: Checker, told: Any) -> MeasuredShape:
    if not isinstance(told, Mapping):
        check.fail("", told, "must be a mapping", "Write a shape as calibration does.")
        told = {}
    names = [field.name for field in fields(MeasuredShape)]
    words = {"kind": ("block", "head"), "attention": ("", "materialised", "selective", "flash")}
    check.known(told, names)
    for name, known in words.items():
        if told.get(name) not in known:
            check.fail(name, told.get(name), "is not known", f"Write one of {', '.join(known)}.")
    sizes = [name for name in names if name not in (*words, "sequence_parallel", "factor")]
    return MeasuredShape(
        kind=str(told.get("kind")),
        attention=str(told.get("attention")),
        sequence_parallel=check.flag(told, "sequence_parallel", default=False),
        factor=check.number(told, "factor", low=0.1, high=10.0),
        **{name: check.number(told, name, low=0.0, high=1e15) for name in sizes},
    )
