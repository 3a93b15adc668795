"""Headrace's command line, of a later release with its migrations in another folder.

python newer_program.py FOLDER COMMAND…
"""

import sys
from pathlib import Path

from headrace.cli import main
from headrace_services.scheduler.store import schema

if __name__ == "__main__":
    schema.MIGRATIONS = Path(sys.argv[1])
    main(sys.argv[2:])
