"""Logging that the event loop does not wait for.

A write to a log file blocks while the file system commits, for 0.1 s and more on a disk that Postgres flushes all
the time. So the records of a scheduler go through a queue, and a thread writes them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue


@contextmanager
def log_aside() -> Iterator[None]:
    """Within the block a thread runs the root logger's handlers; when the block ends, everything has been written."""
    root = logging.getLogger()
    handlers = list(root.handlers)
    records: SimpleQueue[logging.LogRecord] = SimpleQueue()
    listener = QueueListener(records, *handlers, respect_handler_level=True)
    root.handlers[:] = [QueueHandler(records)]
    listener.start()
    try:
        yield
    finally:
        listener.stop()
        root.handlers[:] = handlers
