"""The numbers behind the bounds. The models of a study use them too.

Each keeps everything computed from it within 64 bits: a million trials of `STEPS` steps are 2^60 steps. The
bounds of a space keep the time of a check to some tens of milliseconds.
"""

from typing import Final

STEPS: Final = 2**40
"""Steps of one trial."""
TRIALS: Final = 1_000_000
"""Trials that a study may ask for."""
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
"""Configurations given at once, times the parameters and conditions that each is checked against."""
GRID_BRANCHES: Final = 20_000
"""Branches that are distinguished to count a grid, over all parameters."""
GRID_POINTS: Final = 10_000
"""Points of a grid in one dimension."""
RUNGS: Final = 256
"""Rungs of a ladder, and comparisons of a population."""
BRACKETS: Final = 64
OBJECTIVES: Final = 16
CONSTRAINTS: Final = 64
POPULATION: Final = 10_000
"""Members of a generation, and candidates of a proposal."""
RESULTS: Final = 100_000
"""Results to which a model is fitted."""
RESULTS_OF_A_MATRIX: Final = 2_000
"""The same for a model that is a matrix with a row and a column per result: 32 MB, and seconds on one core."""
LAST_REPORTS: Final = 100
"""Reports of a trial that are averaged for its result."""
WARM_TRIALS: Final = 10_000
"""Trials of an earlier study to start with."""
WEIGHT: Final = 1e6
PRIORITY: Final = 1000
COUNT: Final = 1_000_000
"""Anything else that is counted: results, attempts, peers."""
ETA: Final = 1_000_000
"""The reduction factor of halving."""
BYTES: Final = 2**50
"""A size in bytes."""
EXACT: Final = 2**53
"""Counters that keep growing: sequences, cursors. JSON readers represent them exactly."""
ATTEMPT: Final = 10**9
"""Placements of one trial."""
INT32: Final = 2**31 - 1
INT64: Final = 2**63 - 1
SECONDS: Final = 10**9
"""A duration: 31 years."""
HOURS: Final = 100_000
"""The longest time limit of a study: 11 years."""
FOLDERS: Final = 1000
"""Study folders that a worker asks about at once."""
EXTENSIONS: Final = 256
"""Full budgets that a study had before."""
DEVICES: Final = 1024
"""Slots of one worker, and so of one trial."""
SEATS: Final = 1024
"""Trials that train in one process."""
SOURCES: Final = 256
"""Source files of one attempt, and of one study, that are compared."""
SOURCE_PATH: Final = 256
"""The path of a source file, relative to the study's folder."""
WIDTHS: Final = 64
"""Widths that a gate compares, and scales that a pilot compares."""
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
