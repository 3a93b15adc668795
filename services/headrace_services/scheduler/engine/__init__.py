"""The engine: runs the scheduling cycles of studies, one transaction each.

    load → decide → apply → tell

1. `store.load` locks the study's row, which orders all cycles of a study over all replicas, and reads what the inputs
   name.
2. `core.decide` decides what follows, and asks for further rows if it needs them.
3. `store.apply` writes the plan with the answers to its requests, and commits.
4. Only then are decisions, assignments and acknowledgements sent.

The rows are authoritative. The core works on copies of them, and every write is guarded by the copy that it is
based on. Between cycles a replica keeps only the fold: the policy with all rung results, up to a cursor. After a
cycle of another replica the fold catches up; after an error it is rebuilt.

No local clock is trusted: leases are compared with the database's clock, in the database.

A process may die at any line. Before the commit nothing has been sent, so senders send again. After it, senders
that got no answer send again and get the stored answer.
"""
