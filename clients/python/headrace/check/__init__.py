"""`headrace check`: proves that pausing a script changes nothing, or names what a pause loses.

The script runs straight, then again with saves and restores in new processes. Where and how it ends, reported
metrics and the fingerprints of all training state that can be found in the process (weights, moments,
settings, schedules, scalers, samplers, random generators) are compared bit by bit. `runner` starts the
processes, `segment` is one of them, `discover` and `fingerprint` look into it, `compare` names the loss,
`report` tells it.
"""

from headrace.check.report import CheckReport, Difference, Missing, render
from headrace.check.runner import LIMIT_S, run_check
from headrace.check.snapshot import Kind
from headrace.check.sound import CheckError

__all__ = ["LIMIT_S", "CheckError", "CheckReport", "Difference", "Kind", "Missing", "render", "run_check"]
