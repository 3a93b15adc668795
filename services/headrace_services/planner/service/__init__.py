"""PlannerService: the planner behind gRPC.

The server holds no state except a fixed number of worker processes (`pool`). A call waits for a free one, sends it
the question as bytes and passes on what it returns: progress, then an answer or an error. The event loop never
computes, so health checks answer under any load. A call that is cancelled or loses its client kills its worker and
starts a new one: a search may be inside NumPy and would notice a flag too late. Nothing is lost, because nothing
is kept.
"""
