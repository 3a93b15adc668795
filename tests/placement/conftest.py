"""The virtual cluster of the benchmark is the tests' too."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[2] / "benchmarks" / "placement"))
