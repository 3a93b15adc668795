"""A log that the event loop does not wait for.

A write to a log file stands still while the file system commits, 0.1 s and more on a disk that Postgres flushes all the
time. So the records of a scheduler go through a queue, and a thread writes them.
"""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from logging.handlers import QueueHandler, QueueListener
from queue import SimpleQueue


@contextmanager
def log_aside() -> Iterator[None]:
    """Within the block the root logger's handlers are served by a thread; at its end everything is written."""
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
