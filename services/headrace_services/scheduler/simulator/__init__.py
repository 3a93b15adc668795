"""The simulator: the production scheduler on a virtual clock.

What is real: the step core (`step/core`, `placing`, `reports`, `endings`), the policy, the lifecycle and its table,
placement, explanations and the event log. What is not: time (`engine`, an event heap), the database (`rows`, the same
rows in memory), the cluster (`cluster`, machines of types that differ in speed, and fail), training (`curves`: the
seed's synthetic model or recorded runs) and the sampler (`proposals`).

So a decision here is the decision that the service would take when the same reports came in the same order; what a
simulation cannot know is the order in which reports of real machines will come.
"""
