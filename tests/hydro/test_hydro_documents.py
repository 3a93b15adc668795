"""The program of the how-to page runs as it stands, and the reference names what there is."""

import re
from pathlib import Path
from typing import Any

import torch

from headrace_torch import hydro

DOCS = Path(__file__).resolve().parents[2] / "docs"


def test_the_first_program_of_the_how_to_runs(capsys: Any) -> None:
    page = (DOCS / "how-to/tune-a-small-copy.md").read_text(encoding="utf-8")
    program = re.findall(r"```python\n(.*?)```", page, flags=re.DOTALL)[0]
    torch.manual_seed(0)
    names: dict[str, Any] = {}
    exec(compile(program, "tune-a-small-copy.md", "exec"), names)
    assert names["report"].best.target_score < 1.09  # better than guessing among three classes
    assert "on the target" in capsys.readouterr().out


def test_the_reference_names_public_things() -> None:
    page = (DOCS / "reference/hydro.md").read_text(encoding="utf-8")
    for name in re.findall(r"hydro\.(\w+)\(", page):
        assert hasattr(hydro, name), name
    for name in (
        "shrink",
        "coordinate_check",
        "transfer",
        "choose_scale",
        "search_space",
        "TopK",
        "agreement",
    ):
        assert name in hydro.__all__
        assert name in page
