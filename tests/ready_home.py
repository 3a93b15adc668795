"""Homes whose embedded database is made already: initdb takes a second of a core, a copy of its work does not.

What initdb does is tested where it is the point (`tests/up`), and the walk through the README begins with nothing.
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
