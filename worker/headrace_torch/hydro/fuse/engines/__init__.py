"""Engines: how the members' losses and gradients of one batch are computed.

    stacked    `torch.vmap` over stacked parameters, with or without the grouped rules
    separate   one member after another, in this process
    pool       members spread over spawned processes

All give the same numbers; `probe` picks.
"""
