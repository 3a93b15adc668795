"""The planner's processes, and the share of them that one call may use."""

from headrace_services import sandbox

LIMITS = sandbox.Limits(memory_bytes=2 * 1024**3, time_s=600.0, wait_s=600.0, waiting=1024, each=64)


class Pool(sandbox.Pool):
    """A fixed number of workers; `async with` starts and ends them."""

    def __init__(self, workers: int, limits: sandbox.Limits = LIMITS) -> None:
        super().__init__(_load, workers, limits)


def _load() -> sandbox.Run:
    from headrace_services.planner.service.work import run

    return run
