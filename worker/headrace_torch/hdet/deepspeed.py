"""DeepSpeed: the replicas of an engine are its data-parallel group, as long as ZeRO shards nothing over it.

DeepSpeed is not imported; an engine is recognised by what it offers. Give the controller `engine.module` and
`engine.optimizer`, and step it after `engine.step()` whenever `engine.is_gradient_accumulation_boundary()`
was true before it.
"""

from typing import Any

from headrace_torch.hdet.errors import NotReplicasError
from headrace_torch.hdet.replicas import ReplicaGroup


def deepspeed_replicas(engine: Any) -> ReplicaGroup:
    """Returns the replicas of an engine made by `deepspeed.initialize`.

    With pipeline parallelism a replica is a column of stages: parameters are averaged stage by stage, and the loss
    that the last stage sees scores the whole replica. Observe each replica's own loss, which all its stages find
    in `engine.dp_group_loss` after `train_batch`; the value that `train_batch` returns is the mean over replicas.

    Raises:
        NotReplicasError: ZeRO stage 1 or higher shards the optimizer, or more, over the data-parallel group.
    """
    stage = int(engine.zero_optimization_stage())
    if stage >= 1:
        raise NotReplicasError(
            f"DeepSpeed runs ZeRO stage {stage}, which shards the optimizer over the data-parallel group: "
            "shards are not replicas; set zero_optimization.stage to 0"
        )
    grid = getattr(engine, "grid", None)
    if grid is not None:
        return ReplicaGroup(grid.get_data_parallel_group(), within=grid.get_pipe_parallel_group())
    return ReplicaGroup(engine.seq_data_parallel_group)
