"""Modules that a trial imports: what their import changes stays, and what the trial changed itself is restored."""

from pathlib import Path

import pytest
from leaking_modules import Finder, Leaking
from leaking_run import Result, run

LIBRARY = """
import atexit, logging, os, sys, warnings

class Finder:
    def find_spec(self, *_):
        return None

os.environ["LIBRARY"] = "1"
sys.meta_path.append(Finder())
warnings.filterwarnings("ignore", message="of the library")
logging.getLogger("library").addHandler(logging.NullHandler())
atexit.register(print)
"""
OWN = """
import decimal
decimal.getcontext().prec = 9
"""
TRIAL = """
import os, sys
from pathlib import Path
sys.path.append(str(Path(__file__).parent / "site-packages"))

def train(t):
    import warnings
    os.environ["TRIAL"] = "1"
    warnings.simplefilter("always")
    import late_library
    import late_own
    late_library.Finder
"""


def _run(folder: Path, seen: str, trial: str = TRIAL) -> Result:
    (folder / "site-packages").mkdir()
    (folder / "site-packages" / "late_library.py").write_text(LIBRARY)
    (folder / "late_own.py").write_text(OWN)
    program = Leaking(name="late", source=trial, finder=Finder.SETTING, words=seen)
    return run(program, folder)


@pytest.mark.parametrize(
    ("seen", "before", "after"),
    [
        ("os.environ.get('LIBRARY'), os.environ.get('TRIAL')", "(None, None)", "('1', None)"),
        ("[type(one).__name__ for one in sys.meta_path].count('Finder')", "0", "1"),
        ("[str(one[1].pattern) for one in warnings.filters if one[1]].count('of the library')", "0", "1"),
        ("warnings.filters[0][0] == 'always'", "False", "False"),
        ("len(logging.getLogger('library').handlers)", "0", "1"),
        ("decimal.getcontext().prec", "28", "9"),
    ],
)
def test_what_an_import_changes_stays(tmp_path: Path, seen: str, before: str, after: str) -> None:
    result = _run(tmp_path, seen)
    assert result.reasons == ("", "")
    assert result.values == (before, after, after)


def test_change_before_an_import_is_still_a_change(tmp_path: Path) -> None:
    trial = "COUNT = 0\ndef train(t):\n    global COUNT\n    COUNT += 1\n    import late_own\n"
    assert "leaking.COUNT was 0 and is now 1" in _run(tmp_path, "0", trial).reasons[0]


def test_import_that_fails(tmp_path: Path) -> None:
    (tmp_path / "broken.py").write_text("import os\nos.environ['BROKEN'] = '1'\nraise ValueError\n")
    trial = "import pytest\ndef train(t):\n    with pytest.raises(ValueError):\n        import broken\n"
    assert _run(tmp_path, "0", trial).reasons == ("", "")
