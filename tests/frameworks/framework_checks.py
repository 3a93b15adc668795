"""`python framework_checks.py CASES MODULE…`: checks scripts that use a framework, which takes seconds to import.

It is imported here, once, and each process of each check is a fork of this one. CASES is a JSON file of names and
scripts. The output is each check's result by name, empty if it passed.
"""

import gc
import importlib
import json
import os
import sys
from contextlib import suppress
from pathlib import Path
from tempfile import TemporaryDirectory

from headrace.check import CheckError, render, run_check
from headrace.check.segment import main as segment

WHOLE = "# whole budget"
"""A script with this comment is checked to its end, the others for three steps."""


def launch(control_file: Path, log_file: Path, _ranks: int) -> None:
    """Forks one segment, and waits for it."""
    pid = os.fork()
    if pid:
        os.waitpid(pid, 0)
        return
    log = os.open(log_file, os.O_WRONLY | os.O_CREAT)
    os.dup2(log, 1)
    os.dup2(log, 2)
    with suppress(BaseException):
        segment(str(control_file))
    sys.stdout.flush()
    os._exit(0)


def outcome(script: Path, steps: int | None) -> str:
    """What the check says; empty if it passes."""
    try:
        report = run_check(script, steps=steps, limit_s=3600, folder=script.parent, launch=launch)
    except CheckError as error:
        return str(error)
    return "" if report.passed else str(render(report))


if __name__ == "__main__":
    cases, *modules = sys.argv[1:]
    for name in modules:
        importlib.import_module(name)
    gc.collect()
    gc.freeze()
    said = {}
    with TemporaryDirectory() as folder:
        for name, source in json.loads(Path(cases).read_text()).items():
            script = Path(folder) / "script.py"
            script.write_text(source)
            said[name] = outcome(script, None if WHOLE in source else 3)
    print(json.dumps(said))
