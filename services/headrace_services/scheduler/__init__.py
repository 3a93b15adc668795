"""The trial scheduler: a stateless service over Postgres.

- `core`: what is decided, from values to values. `core.decide` is its heart; `core.lifecycle` the five states of a
  trial; `core.policies` and `core.placement` the algorithms.
- `store`: Postgres. `store.load` answers the core's questions, `store.apply` writes its plan.
- `engine`: runs the cycles of a study. `engine.cycle` is one transaction, `engine.runner` gathers what arrives for a
  study meanwhile, `engine.hub` has a runner for each study and tells who must know.
- `session`: the streams to the worker daemons. `rpc`: the calls of users.
- `samplers`, `suggesting`: how configurations are proposed, here and in processes of their own.
- `simulator`, `replay`: the same core on virtual time, and over a recorded event log.
- `process`: puts the parts together, serves, drains.
"""
