"""The service that users call.

A method is three moves: convert, call, convert. What a request says is checked in `checks` and `names` before
anything is touched; what exists already changes through the hub, in the study's own steps (`calls`); reads
are one short transaction each. Protos and records meet in `convert` alone, errors and callers in
`interceptors` alone.

Every mutating call may arrive twice, also at two replicas at once: its answer is stored under its request id in
the transaction that did the work, and a repeat gets the same bytes. An empty stored answer is the answer to a
lease that was stale.
"""
