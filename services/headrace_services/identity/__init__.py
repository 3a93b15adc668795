"""Who calls, and what they may do: shared by the scheduler and the planner.

A token is a text that a call carries as `authorization: Bearer TOKEN` (`tokens`). It grants a role in a project
(`roles`). One table says which roles may call which method (`permissions`); a method that is not in it is denied.
The gate (`gate`) reads a call's token, finds its owner and checks the table; the interceptor (`interceptor`) asks
the gate before a request is read.

The scheduler finds the owner of a token in its database and caches it for a few seconds (`known`). So a revoked
token works for at most another `keeping.KEPT_S`. While a stream is open, the gate is asked again.
"""
