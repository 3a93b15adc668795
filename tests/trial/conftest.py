"""Fixtures of the trial API's tests: a scripted worker daemon, and a runtime in memory."""

import tempfile
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
from recording_runtime import RecordingRuntime
from scripted_daemon import Daemon


@pytest.fixture
def daemon() -> Iterator[Callable[..., Daemon]]:
    """Starts daemons for a script's source; each has a folder of its own, with a path short enough for a socket."""
    with ExitStack() as stack:

        def start(source: str, target: str = "script:train", **options: Any) -> Daemon:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="hr-trial-")))
            (folder / "script.py").write_text(source)
            return stack.enter_context(Daemon(folder=folder, target=target, **options))

        yield start


@pytest.fixture
def recording(tmp_path: Path) -> RecordingRuntime:
    """A runtime that answers from memory."""
    return RecordingRuntime(checkpoint_dir=tmp_path / "checkpoints")
