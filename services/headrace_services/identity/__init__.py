"""Who calls, and what they may do: the one truth that the scheduler and the planner share.

A token is a text that a call carries as `authorization: Bearer TOKEN` (`tokens`). It stands for a role in a project
(`roles`). One table says which roles may call which method (`permissions`); a method that is not in it is refused. The
gate (`gate`) reads a call's token, finds whose it is and looks into the table; the interceptor (`interceptor`) asks it
before a request is read.

Whose a token is, the scheduler finds in its database and keeps for some seconds (`known`). So a token that is revoked
works for `keeping.KEPT_S` more at most. While a stream is open it is asked again.
"""
