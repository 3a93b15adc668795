"""A rank of a large job whose only stage waits for 20 ms in each step, until it is killed."""

import itertools
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from stage_site import Stage

stage = Stage(Path(sys.argv[1]), stage=1)
for number in itertools.count():
    stage.play(1, first=number, window_s=0.02)
