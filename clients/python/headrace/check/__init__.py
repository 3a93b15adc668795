"""`headrace check`: proves that pausing a script changes nothing, or names what a pause loses.

The script runs straight through, then again with saves and restores in new processes. The check compares, bit by
bit, where and how each run ends, the reported metrics, and fingerprints of all training state that it can find
in the process: weights, moments, settings, schedules, scalers, samplers, random generators. `runner` starts the
processes, `segment` is one of them, `discover` and `fingerprint` inspect it, `compare` names the loss, and
`report` presents it.
"""

from headrace.check.report import CheckReport, Difference, Missing, render
from headrace.check.reuse_report import ReuseReport, ReuseVerdict, render_reuse
from headrace.check.reuse_runner import run_reuse_check
from headrace.check.runner import LIMIT_S, run_check
from headrace.check.snapshot import Kind
from headrace.check.sound import CheckError

__all__ = [
    "LIMIT_S",
    "CheckError",
    "CheckReport",
    "Difference",
    "Kind",
    "Missing",
    "ReuseReport",
    "ReuseVerdict",
    "render",
    "render_reuse",
    "run_check",
    "run_reuse_check",
]
