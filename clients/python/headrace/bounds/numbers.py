"""The numbers behind the bounds; the models of a study take theirs from here too.

Each leaves what is computed from it within 64 bits: a million trials of `STEPS` steps are 2^60 steps. Those of a space
leave the work of a check within some tens of milliseconds.
"""

from typing import Final

STEPS: Final = 2**40
"""Steps of one trial."""
TRIALS: Final = 1_000_000
"""Trials that a study may be told to try."""
SLOTS: Final = 10_000
"""Slots that a preview may assume."""
PARAMETERS: Final = 1000
"""Parameters of a space."""
CONDITIONS: Final = 32
"""Conditions of one parameter."""
CONDITIONS_IN_ALL: Final = 2000
"""Conditions of a whole space."""
VALUES_IN_ALL: Final = 20_000
"""Values that a whole space lists: those of its categorical parameters and of its conditions."""
CONFIGURATION_CHECKS: Final = 200_000
"""Configurations that are given at once times the parameters and conditions that each is held against."""
GRID_BRANCHES: Final = 20_000
"""Branches that are told apart to count a grid, over all parameters."""
GRID_POINTS: Final = 10_000
"""Points of a grid on one dimension."""
RUNGS: Final = 256
"""Rungs of a ladder, and comparisons of a population."""
BRACKETS: Final = 64
OBJECTIVES: Final = 16
CONSTRAINTS: Final = 64
POPULATION: Final = 10_000
"""Members of a generation, and candidates of a proposal."""
RESULTS: Final = 100_000
"""Results that a model is fitted to."""
RESULTS_OF_A_MATRIX: Final = 2_000
"""The same, where the model is a matrix with a row and a column for each: 32 MB, and seconds of a core."""
LAST_REPORTS: Final = 100
"""Reports of a trial whose mean counts."""
WARM_TRIALS: Final = 10_000
"""Trials of an earlier study to begin with."""
WEIGHT: Final = 1e6
PRIORITY: Final = 1000
COUNT: Final = 1_000_000
"""Anything else that is counted: results, attempts, peers."""
ETA: Final = 1_000_000
"""The reduction factor of halving."""
BYTES: Final = 2**50
"""A size in bytes."""
EXACT: Final = 2**53
"""Counts that run on: sequences, cursors. JSON readers keep them exactly."""
ATTEMPT: Final = 10**9
"""Placements of one trial."""
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
SECONDS: Final = 10**9
"""A duration: 31 years."""
HOURS: Final = 100_000
"""How long a study may be told to go on at most: 11 years."""
FOLDERS: Final = 1000
"""Folders of studies that a worker asks about at once."""
EXTENSIONS: Final = 256
"""Full budgets that a study had before."""
DEVICES: Final = 1024
"""Slots of one worker, and so of one trial."""
SEATS: Final = 1024
"""Trials that train in one process."""
SOURCES: Final = 256
"""Source files of one attempt, and of one study, that are compared."""
SOURCE_PATH: Final = 256
"""The path of a source file, from the study's folder on."""
WIDTHS: Final = 64
"""Widths that a gate compares, and scales that a pilot does."""
PILOT: Final = 100
"""Configurations of a pilot."""
HELD: Final = 4096
"""Leases of one worker."""
METRICS: Final = 1000
"""Metrics of one report."""
TEXT: Final = 8192
"""A text for people, a path, a parameter's value."""
NAME: Final = 256
"""A name that people or programs give."""
DEGREE: Final = 1_000_000
"""A degree of parallelism."""
SEQUENCES: Final = 10**9
"""Sequences of a batch, and micro-batches of an iteration."""
TOKENS: Final = 10**8
"""Tokens of a sequence."""
LOG_TAIL: Final = 8192
KIB: Final = 1024
PLAN_BYTES: Final = 256 * KIB
"""All files of a plan that a study keeps."""
