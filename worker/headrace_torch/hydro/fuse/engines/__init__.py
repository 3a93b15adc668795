"""Engines: how the members' losses and gradients of one batch are computed.

    stacked    `torch.vmap` over stacked parameters, with or without the grouped rules
    separate   one member after the other, in this process
    pool       members over spawned processes

All give the same numbers; `probe` picks.
"""
