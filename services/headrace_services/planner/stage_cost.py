"""Seconds of everything that is not a layer's pass: transfers between stages, gradient collectives, the
optimizer's step.

Arguments may be floats or arrays, as in `layer_cost`.
"""

from headrace_services.planner.cluster import Cluster
from headrace_services.planner.collectives import Group, all_reduce_s
from headrace_services.planner.layer_cost import BYTES, Shape

OPTIMIZER_TRAFFIC = 30
"""Bytes an Adam step moves per parameter: reads 2 + 12 and the gradient in 32 bits, writes 12 + 2 (mixed precision)."""


def transfer_s(
    hidden: float, shape: Shape, crosses: float, cluster: Cluster, network: float | None = None
) -> float:
    """The time to receive one micro-batch's activations, or their gradients, from a neighbouring stage.

    Each tensor rank sends 1/t of the 2bSh bytes and the receivers gather them over their links (SC'21, section
    4.1; DeepSpeed's pipeline engine does the same). With sequence parallelism each rank needs only its own 1/t
    (Korthikanti et al. 2022, section 4.2.2), and nothing is gathered. `crosses` is 1 if the two stages are on
    different nodes; `network` is the bandwidth between these, if it is not that of all nodes.
    """
    device, constants = cluster.device, cluster.device.efficiencies
    volume = BYTES * shape.tokens * hidden
    link = device.link_bandwidth * constants.link
    within = constants.transfer_s + volume / shape.t / link
    bandwidth = device.network_bandwidth if network is None else network
    between = constants.transfer_network_s + volume / shape.t / (bandwidth * constants.transfer)
    gather = 0.0 if shape.sequence_parallel else (shape.t - 1) / shape.t * volume / link
    return crosses * between + (1 - crosses) * within + gather


def gradient_s(parameters: float, ranks: Group, cluster: Cluster, *, bytes_each: float = BYTES) -> float:
    """All-reduce of gradients of `bytes_each`. A reduce-scatter or an all-gather takes half as long.

    Rings with several ranks on a node were measured to be slower than their share of the network
    (`Efficiencies.gradients_shared`)."""
    device, constants = cluster.device, cluster.device.efficiencies
    shared = (ranks.per_node > 1) * (ranks.nodes > 1)
    network = constants.gradients * (1 + shared * (constants.gradients_shared - 1))
    return all_reduce_s(
        bytes_each * parameters,
        ranks,
        link=device.link_bandwidth * constants.gradients,
        network=(device.network_bandwidth if ranks.ring is None else ranks.ring) * network,
        latency_s=0.0,
        node_latency_s=0.0,
    )


def optimizer_s(parameters: float, cluster: Cluster) -> float:
    """The time of the step over the parameters of one shard: it only moves memory."""
    return (
        OPTIMIZER_TRAFFIC
        * parameters
        / (cluster.device.memory_bandwidth * cluster.device.efficiencies.optimizer)
    )
