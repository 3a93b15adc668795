"""The service that users call.

A method is three moves: convert, call, convert. What a request says is checked in `checks` and `names` before
anything is touched. Existing studies change through the hub, in their own cycles (`calls`). Reads
are one short transaction each. Protos and records meet in `convert` alone, errors and callers in
`interceptors` alone.

Every mutating call may arrive twice, even at two replicas at once. Its answer is stored under its request id in
the transaction that did the work, and a repeat gets the same bytes. An empty stored answer means that the lease was
stale.
"""
