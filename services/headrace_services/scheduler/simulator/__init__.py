"""The simulator: the production scheduler on a virtual clock.

What is real: the core (`core.decide` and all below it), with its policies, placement, explanations and event log.
What is not: time (`engine`, an event heap), the database (`cycle` answers the core from `rows`, the same rows in
memory), the cluster (`cluster`, machines of types that differ in speed, and fail), training (`curves`: the seed's
synthetic model or recorded runs) and the sampler (`proposals`).

So a decision here is the decision that the service would take when the same reports came in the same order; what a
simulation cannot know is the order in which reports of real machines will come.
"""
