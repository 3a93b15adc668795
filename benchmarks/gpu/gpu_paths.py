"""Puts the folders that the benchmarks of this one share with others on the path."""

import sys
from pathlib import Path

sys.path.append(str(Path(__file__).resolve().parents[1] / "hydro"))
