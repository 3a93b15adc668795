"""What a scheduler does before it serves: after a kill it must be back soon."""

import subprocess
import sys

import pytest

pytestmark = pytest.mark.full

SLOW = {"alembic", "cryptography", "numpy", "optuna", "pathspec", "rich", "scipy"}
"""Modules that only some studies, calls and clusters need, or an outdated schema."""

START = """
import sys
from headrace.cli import main
try:
    main(["scheduler", "--database-url", "no database"])
except SystemExit:
    pass
"""


def after_start(program: str) -> str:
    """What a program prints after everything that the command imports."""
    return subprocess.run(
        [sys.executable, "-c", START + program], stdout=subprocess.PIPE, text=True, check=True
    ).stdout


def test_a_scheduler_that_starts_imports_nothing_that_is_slow_and_rarely_needed() -> None:
    found = after_start("print(*sorted({name.partition('.')[0] for name in sys.modules}))").split()
    assert "headrace_services" in found
    assert "sqlalchemy" in found
    assert SLOW.intersection(found) == set()


def test_a_scheduler_that_starts_compiles_no_statement() -> None:
    program = """
import gc
from headrace_services.scheduler.store.pipeline import Statement
gc.unfreeze()
made = [one for one in gc.get_objects() if isinstance(one, Statement)]
print(len(made) > 50, sum("compiled" in vars(one) for one in made))
"""
    assert after_start(program).split() == ["True", "0"]
