"""Packages with policies and samplers of their own, as an installer would leave them."""

from pathlib import Path


def install(folder: Path, package: str, source: str, *, policies: str = "", samplers: str = "") -> None:
    """Install a module and its entry points; each is `NAME = MODULE:FUNCTION`."""
    (folder / f"{package}.py").write_text(source)
    info = folder / f"{package}-1.0.dist-info"
    info.mkdir()
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    groups = [("headrace.policies", policies), ("headrace.samplers", samplers)]
    text = "".join(f"[{group}]\n{points}\n" for group, points in groups if points)
    (info / "entry_points.txt").write_text(text)


WAITS = """
from headrace_services.scheduler.plugins import Action, StoppingRule


class Waits(StoppingRule):
    rule = "waits"

    def __init__(self, spec):
        super().__init__(ladder=spec.rungs(), grace=1, maximize=spec.maximizes())

    def _fold(self, result):
        pass

    def _judge(self, result):
        return self._verdict(result, Action.PAUSE, "it waits for ever")


def make(spec, options):
    return Waits(spec)
"""
"""A policy that pauses every trial at its first rung."""
BROKEN = WAITS.replace(
    'return self._verdict(result, Action.PAUSE, "it waits for ever")',
    'raise ZeroDivisionError("of the plugin")',
)
"""A policy that raises when it should decide."""
FORGETFUL = WAITS.replace(
    'return self._verdict(result, Action.PAUSE, "it waits for ever")',
    """self.asked = getattr(self, "asked", 0) + 1
        stops = self.asked % 3 == 0
        return self._verdict(result, Action.STOP if stops else Action.CONTINUE, f"asked {self.asked} times")""",
)
"""A policy whose queries change its answers."""
SIDED = WAITS.replace(
    'return self._verdict(result, Action.PAUSE, "it waits for ever")',
    """stops = result.value > 1
        return self._verdict(result, Action.STOP if stops else Action.CONTINUE, "by the value itself")""",
)
"""A policy that treats lower values as better, whatever the goal."""
STUBBORN = """
class Stubborn:
    def suggest(self, number, results, pending, generator):
        return {"x": 0.5, "width": 8, "kind": "plain"}


def make(spec, options):
    return Stubborn()
"""
"""A sampler that ignores the seed."""
OUTSIDE = STUBBORN.replace('"x": 0.5', '"x": 99.0')
"""A sampler that proposes values outside the space."""
