"""The trial scheduler: a stateless service over Postgres.

What decides, from the inside out:

- `lifecycle`: the five states of a trial and the one table of transitions between them.
- `policies`, `samplers`, `preview`: pure algorithms, values in and values out.
- `step`: reclaim, repack, relaunch. `step.core` is pure and holds every rule of what an arrival changes;
  `step.transaction` loads what the core needs and writes what it changed, in one transaction;
  `step.runner` gathers what arrives for a study while the previous transaction runs into the next one.
- `store`: tables, migrations, statements. The only truth.
- `session`: the streams to the worker daemons. A cache of the truth.
- `rpc`: the service that users call; conversions between protos and records.
- `process`: puts the parts together, serves, drains.
"""
