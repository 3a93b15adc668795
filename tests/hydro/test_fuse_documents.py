"""The programs of the how-to run, in their order on the page."""

import re
from pathlib import Path
from typing import Any

import pytest
import torch

pytestmark = pytest.mark.full

PAGE = Path(__file__).resolve().parents[2] / "docs" / "how-to" / "fuse-trials.md"


def test_the_how_to_runs() -> None:
    blocks = re.findall(r"^```python\n(.*?)^```$", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL)
    assert len(blocks) == 7
    names: dict[str, Any] = {}
    state = torch.get_rng_state()
    torch.manual_seed(0)
    for block in blocks:
        exec(compile(block, str(PAGE), "exec"), names)
    torch.set_rng_state(state)
    assert names["group"].ids == [1, 3, 4]
    assert sum(names["plan"].waves(20)) == 20
