"""Periodic checks of the database, every second or two: log only when they start or stop failing."""

from collections.abc import Iterator
from contextlib import contextmanager
from logging import Logger

from headrace_services.scheduler.engine.retries import cause, is_unavailable


class Looks:
    """Logs when checks start to fail, fail in another way than before, or succeed again."""

    def __init__(self, log: Logger, wanted: str) -> None:
        self._log = log
        self._wanted = wanted
        self._failing: type[Exception] | None = None

    @contextmanager
    def look(self) -> Iterator[None]:
        """Check once within the block, which ends at a failure. The next check tries again."""
        try:
            yield
        except Exception as error:  # noqa: BLE001  # whatever it is, the next check tries again
            if self._failing is not type(error):
                trace = None if is_unavailable(error) else error
                self._log.warning("could not look for %s: %s", self._wanted, cause(error), exc_info=trace)
            self._failing = type(error)
        else:
            if self._failing is not None:
                self._log.info("can look for %s again", self._wanted)
            self._failing = None
