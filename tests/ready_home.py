"""Homes with a ready-made embedded database: initdb takes a second of a core, and a copy of its result does not.

initdb itself is tested in `tests/up`, and the walk through the README starts from nothing.
"""

import atexit
import shutil
import subprocess
import tempfile
from functools import cache
from pathlib import Path

from headrace.home import make_private
from headrace_services.up.postgres import EmbeddedPostgres


def furnish(home: Path) -> None:
    """Makes a home for `headrace up`, with an empty database."""
    make_private(home)
    subprocess.run(["cp", "-a", str(_made()), str(home / "postgres")], check=True)  # owners included


@cache
def _made() -> Path:
    """The data folder that is copied; one for each test process."""
    folder = Path(tempfile.mkdtemp(prefix="hr-home-"))
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    data = folder / "postgres"
    EmbeddedPostgres(data_dir=data, log_path=folder / "postgres.log").prepare()
    return data
