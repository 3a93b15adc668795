"""The trial scheduler: a stateless service over Postgres.

- `core`: all decisions, from values to values. `core.decide` is its heart, `core.lifecycle` has the five states of
  a trial, and `core.policies` and `core.placement` have the algorithms.
- `store`: Postgres. `store.load` answers the core's questions, `store.apply` writes its plan.
- `engine`: runs the cycles of studies. `engine.cycle` is one transaction, `engine.runner` collects what arrives
  for a study meanwhile, and `engine.hub` has a runner for each study and sends the results on.
- `session`: the streams to the worker daemons. `rpc`: the calls of users.
- `samplers`, `suggesting`: how configurations are proposed, in this process and in separate ones.
- `simulator`, `replay`: the same core on virtual time, and over a recorded event log.
- `process`: assembles the parts, serves, drains.
"""
