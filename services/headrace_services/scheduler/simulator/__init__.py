"""The simulator: the production scheduler on a virtual clock.

The core is the real one (`core.decide` and everything below it), with its policies, placement, explanations and
event log. These parts are simulated: time (`engine`, an event heap), the database (`cycle` answers the core from
`rows`, the same rows in memory), the cluster (`cluster`, machines of types that differ in speed and may fail),
training (`curves`: a synthetic model or recorded runs) and the sampler (`proposals`).

So a decision here is the decision that the service would make if the same reports arrived in the same order. What
a simulation cannot know is the order in which reports of real machines will arrive.
"""
