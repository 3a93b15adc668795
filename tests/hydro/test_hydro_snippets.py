"""Every program of Hydro's how-to pages runs as a script without a main guard: from a file, `-c` and a notebook.

By default each page runs in one of these ways; HEADRACE_SNIPPETS=all runs all of them.
"""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.full

PAGES = Path(__file__).resolve().parents[2] / "docs" / "how-to"
TUNE, FUSE = "tune-a-small-copy.md", "fuse-trials.md"
EVERY = [(page, way) for page in (TUNE, FUSE) for way in ("file", "-c", "notebook")]
RUN = EVERY if os.environ.get("HEADRACE_SNIPPETS") == "all" else [(TUNE, "notebook"), (FUSE, "-c")]


def program(page: str) -> list[str]:
    """The page's blocks, in order; the first one says that it is runnable."""
    text = (PAGES / page).read_text(encoding="utf-8")
    blocks = re.findall(r"^```python\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    return ["print('the body runs')\nimport torch\ntorch.manual_seed(0)\ntorch.set_num_threads(1)\n", *blocks]


def run_script(way: str, blocks: list[str], folder: Path) -> str:
    whole = "\n".join(blocks)
    path = folder / "script.py"
    path.write_text(whole, encoding="utf-8")
    command = [str(path)] if way == "file" else ["-c", whole]
    ran = subprocess.run(
        [sys.executable, "-W", "error::UserWarning", *command],
        capture_output=True,
        text=True,
        timeout=280,
        check=False,
        cwd=folder,
    )
    assert ran.returncode == 0, ran.stderr
    return ran.stdout


def run_notebook(blocks: list[str], folder: Path) -> str:
    nbclient = pytest.importorskip("nbclient")
    pytest.importorskip("ipykernel")
    nbformat = pytest.importorskip("nbformat")
    book = nbformat.v4.new_notebook(cells=[nbformat.v4.new_code_cell(one) for one in blocks])
    book.metadata["kernelspec"] = {"name": "python3", "display_name": "python3"}
    client = nbclient.NotebookClient(book, timeout=280, resources={"metadata": {"path": str(folder)}})
    client.execute()  # raises if a cell does
    outputs = (one for cell in book.cells for one in cell.outputs if one.output_type == "stream")
    return "".join(one.text for one in outputs if one.name == "stdout")


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize(("page", "way"), RUN)
def test_the_programs_of_a_page_run_once(page: str, way: str, tmp_path: Path) -> None:
    blocks = program(page)
    out = run_notebook(blocks, tmp_path) if way == "notebook" else run_script(way, blocks, tmp_path)
    assert out.count("the body runs") == 1
    assert ("on the target" in out) if page == TUNE else ("are worth it" in out)
