"""The service that users call.

A method makes three moves: convert, call, convert. `checks` and `names` validate a request before anything is
touched. Existing studies change through the hub, in their own cycles (`calls`). Each read is one short
transaction. Only `convert` knows both protos and records, and only `interceptors` handles errors and callers.

Every mutating call may arrive twice, even at two replicas at the same time. Its answer is stored under its request
id in the transaction that did the work, and a repeat gets the same bytes. An empty stored answer means that the
lease was stale.
"""
