"""How often, and for how long, the work of a study is retried when the database does not accept it.

- Another transaction came first: at once, up to `CONFLICTS` attempts.
- The database is unavailable: for `AWAY_S` seconds. The next input of the study starts afresh.
- The database lacked time, memory or disk space: up to `STRAINED` attempts.

Then the work is given up with a DatabaseUnavailableError. That loses nothing: workers keep their messages and send
them again, users' calls end as unavailable, and sweeps find the same again. Every attempt after the first is
logged.
"""

import logging

from tenacity import AsyncRetrying, RetryCallState, retry_if_exception, wait_random_exponential

from headrace.errors import DatabaseUnavailableError
from headrace_services.scheduler import measures
from headrace_services.scheduler.store.apply import is_stale_copy
from headrace_services.scheduler.store.database import is_away, is_conflict, is_overtaken, is_strained
from headrace_services.scheduler.store.defects import reason_of

log = logging.getLogger(__name__)

CONFLICTS = 20
AWAY_S = 60.0
STRAINED = 4
STRAINED_S = 30.0
"""No further attempt after this long: an attempt that fails by the statement timeout takes a minute."""

_SOON = wait_random_exponential(multiplier=0.01, max=0.2)
_AWAY = wait_random_exponential(multiplier=0.05, max=1)
_LATER = wait_random_exponential(multiplier=0.25, max=5)


def retrying(what: str) -> AsyncRetrying:
    """Attempts at one piece of work after another; not at several at once. `what` is its name in the log."""

    def say(state: RetryCallState) -> None:
        error = _error(state)
        measures.DATABASE_RETRIES.labels(_kind(error)).inc()
        level = logging.DEBUG if lost_a_race(error) else logging.WARNING
        log.log(level, "%s: attempt %s failed: %s", what, state.attempt_number, cause(error))

    return AsyncRetrying(
        retry=retry_if_exception(may_pass), wait=_pause_s, stop=_is_spent, before_sleep=say, reraise=True
    )


def may_pass(error: BaseException) -> bool:
    """Whether the same work might succeed later."""
    return lost_a_race(error) or is_unavailable(error)


def is_unavailable(error: BaseException) -> bool:
    """Whether the database is unavailable, or lacked a resource for the work."""
    if is_conflict(error):
        return False
    return isinstance(error, DatabaseUnavailableError) or is_away(error) or is_strained(error)


def lost_a_race(error: BaseException) -> bool:
    """Whether another transaction came first."""
    return is_conflict(error) or is_stale_copy(error) or is_overtaken(error)


def cause(error: BaseException) -> str:
    """The database's error message, in one line."""
    return reason_of(error.__cause__ or error)


def _kind(error: BaseException) -> str:
    return "conflict" if lost_a_race(error) else "strained" if is_strained(error) else "away"


def _error(state: RetryCallState) -> BaseException:
    error = state.outcome.exception() if state.outcome is not None else None
    assert error is not None, "asked after a failed attempt only"
    return error


def _pause_s(state: RetryCallState) -> float:
    error = _error(state)
    wait = _SOON if lost_a_race(error) else _LATER if is_strained(error) else _AWAY
    return wait(state)


def _is_spent(state: RetryCallState) -> bool:
    error = _error(state)
    took_s = state.seconds_since_start or 0.0
    if lost_a_race(error):
        return state.attempt_number >= CONFLICTS
    if is_strained(error):
        return state.attempt_number >= STRAINED or took_s >= STRAINED_S
    return took_s >= AWAY_S
