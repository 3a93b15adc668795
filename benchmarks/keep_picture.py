"""Copy a picture that a page shows from benchmarks/results into docs/images, with two decimals and without metadata.

python benchmarks/keep_picture.py benchmarks/results/load.svg docs/images/scheduler-load.svg
"""

import re
import sys
from pathlib import Path


def compact(svg: str) -> str:
    """The same drawing, written compactly. The scales of transforms keep their digits."""
    svg = re.sub(r"<\?xml.*?\?>|<!DOCTYPE.*?>|<!--.*?-->|<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r"\bd=\"[^\"]*\"|\b(?:x|y)=\"[^\"]*\"", lambda found: rounded(found[0]), svg)
    svg = re.sub(r">\s+<", "><", svg).replace('<g id="', '\n<g id="')
    return svg.strip() + "\n"


def rounded(attribute: str) -> str:
    """Coordinates with two decimals, on one line."""
    short = re.sub(
        r"-?\d+\.\d+(?![\d.e])", lambda number: f"{float(number[0]):.2f}".rstrip("0").rstrip("."), attribute
    )
    return re.sub(r"\s+", " ", short).replace(' "', '"')


if __name__ == "__main__":
    source, target = map(Path, sys.argv[1:])
    target.write_text(compact(source.read_text(encoding="utf-8")), encoding="utf-8")
