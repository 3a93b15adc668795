"""The settings of `logging`. A handler that a trial has added is removed and closed."""

import logging
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any

from headrace.trial.reuse.setting import Setting, attribute

_State = tuple[int, bool, bool, tuple[Any, ...], tuple[Any, ...]]
_NEW: _State = (logging.NOTSET, False, True, (), ())
"""A logger's state right after `logging.getLogger`."""


def settings() -> Iterator[Setting]:
    """All of them."""
    yield Setting("logging", _read, _write)
    yield Setting(
        "logging.disable",
        lambda: logging.root.manager.disable,
        lambda saved: logging.disable(saved),
    )
    yield attribute(logging, "raiseExceptions")
    yield attribute(logging, "lastResort")
    yield attribute(logging, "_warnings_showwarning", "logging.captureWarnings")
    yield attribute(logging, "_loggerClass", "logging.setLoggerClass")
    yield attribute(logging, "_logRecordFactory", "logging.setLogRecordFactory")


def _loggers() -> dict[str, logging.Logger]:
    found = {
        name: one
        for name, one in list(logging.root.manager.loggerDict.items())
        if isinstance(one, logging.Logger)
    }
    return {"": logging.root, **found}


def _read() -> dict[str, _State]:
    found = {name: _state(logger) for name, logger in _loggers().items()}
    return {name: state for name, state in found.items() if state != _NEW}


def _state(logger: logging.Logger) -> _State:
    handlers = tuple((id(one), one, one.level, id(one.formatter), one.formatter) for one in logger.handlers)
    return logger.level, logger.disabled, logger.propagate, handlers, tuple(logger.filters)


def _write(saved: Mapping[str, _State]) -> None:
    for name, logger in _loggers().items():
        state = saved.get(name, _NEW)
        if state == _state(logger):
            continue
        level, disabled, propagate, handlers, filters = state
        kept = [one for _, one, *_ in handlers]
        added = [one for one in logger.handlers if one not in kept]
        logger.handlers[:] = kept
        for one in added:
            with suppress(Exception):
                one.flush()
                one.close()
        for _, one, of_handler, _, formatter in handlers:
            one.setLevel(of_handler)
            one.setFormatter(formatter)
        logger.filters[:] = filters
        logger.disabled, logger.propagate = disabled, propagate
        logger.setLevel(level)
