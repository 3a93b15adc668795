"""How both transports reach the scheduler: the channels' options and the timeouts.

Retries: a call that fails with UNAVAILABLE or with its own deadline is repeated with the same request, and so
with the same request id, until the overall deadline. A client that has never had an answer gives up sooner
(`connect_timeout_s`), because a wrong address is then more likely than a restarting scheduler. If there are
several replicas (`headrace.target`), the next one is called at once (`route`).
"""

import time
from collections.abc import Callable

from tenacity import RetryCallState, retry_if_exception, wait_random_exponential

from headrace.client.arguments import seconds
from headrace.errors import DeadlineError, HeadraceError, UnreachableError
from headrace.target import Target
from headrace.tls_faults import tls_fault

ATTEMPT_TIMEOUT_S = 15.0
"""The deadline of one attempt. If a scheduler hangs, there is another attempt within the overall deadline."""

UPLOAD_TIMEOUT_S = 600.0
"""The deadline of an upload, all attempts together: 100 MiB over a line of 2 Mbit/s."""

STATUS_TIMEOUT_S = 3.0
"""The deadline when a watch checks, between two streams, whether the study still exists. It is short, as the
watch then reports the failure and retries.
"""

_SHORTEST_S = 0.05
"""The shortest deadline of an attempt when hardly any time is left, unless the whole operation has less."""

STREAM_TIMEOUT_S = 3600.0
"""The deadline of one watch stream; the watch then opens another."""

OPTIONS: tuple[tuple[str, int], ...] = (
    ("grpc.keepalive_time_ms", 30_000),
    ("grpc.keepalive_timeout_ms", 10_000),
    # A restarting scheduler is back within seconds; the default backoff grows to two minutes.
    ("grpc.initial_reconnect_backoff_ms", 100),
    ("grpc.min_reconnect_backoff_ms", 1_000),
    ("grpc.max_reconnect_backoff_ms", 2_000),
)


class Patience:
    """How long one client waits for answers, and whether it ever had one."""

    def __init__(self, *, timeout_s: float, connect_timeout_s: float) -> None:
        self.timeout_s = seconds("timeout_s", timeout_s)
        self.connect_timeout_s = min(seconds("connect_timeout_s", connect_timeout_s), self.timeout_s)
        self.answered = False

    @property
    def budget_s(self) -> float:
        """The time for one operation, all attempts together."""
        return self.timeout_s if self.answered else self.connect_timeout_s

    def attempt_timeout_s(self, elapsed_s: float, replicas: int = 1) -> float:
        """The deadline of an attempt that starts now. Until one of several replicas answers, it leaves time for
        the others.
        """
        longest_s = ATTEMPT_TIMEOUT_S
        if replicas > 1 and not self.answered:
            longest_s = self.connect_timeout_s / replicas
        return max(min(_SHORTEST_S, self.timeout_s), min(longest_s, self.timeout_s - elapsed_s))

    def note(self, error: HeadraceError | None) -> None:
        """Learns from an answer (None: a good one)."""
        if not isinstance(error, UnreachableError | DeadlineError):
            self.answered = True

    def exhausted(self, started: float) -> Callable[[RetryCallState], bool]:
        """For tenacity: whether no time is left for another attempt at an operation that started at `started`
        (monotonic clock).
        """
        return lambda state: time.monotonic() - started + state.upcoming_sleep >= self.budget_s


wait = wait_random_exponential(multiplier=0.2, max=2.0)
"""The wait between two attempts."""


def _is_transient(error: BaseException) -> bool:
    return isinstance(error, HeadraceError) and error.retryable


retry_transient: Callable[[RetryCallState], bool] = retry_if_exception(_is_transient)


def name_address(
    error: HeadraceError, target: Target, *, server: str = "scheduler", start: str = ""
) -> HeadraceError:
    """An unreachable server's error with the address that was tried; `start` says how to start such a server, if
    it is not a scheduler.
    """
    if isinstance(error, UnreachableError):
        if target.tls and (fault := tls_fault(error.message)) is not None:
            return UnreachableError(
                f"The {server} at {target.address} is not trusted: {fault.message}.", remedy=fault.remedy
            )
        return UnreachableError(
            f"No Headrace {server} answers at {target.address}{_reason(error)}.",
            remedy=start or error.remedy,
        )
    if isinstance(error, DeadlineError):
        return DeadlineError(f"The {server} at {target.address} did not answer in time.", remedy=error.remedy)
    return error


def _reason(error: UnreachableError) -> str:
    """The last part of gRPC's message; empty if nothing listens at the address, as that needs no explanation."""
    said = error.message.rstrip(".)]").rsplit(": ", 1)[-1].strip()
    if "refused" in said or "No Headrace server" in said or said in ("OK", ""):
        return ""
    return f" ({said[:160]})"
