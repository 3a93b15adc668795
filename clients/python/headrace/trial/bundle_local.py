"""A bundle by hand: `python train.py --lr 0.001,0.003,0.01` trains three members, a table with a column for each.

There are no decisions. With a checkpoint folder, each member has its own folder in it, and continues from there.
"""

from collections.abc import Mapping, Sequence
from pathlib import Path

from headrace.trial.bundle_runtime import Answer, Attached, Ended, Said, Seat
from headrace.trial.local import LocalRuntime
from headrace.trial.runtime import Action, Decision, Report, Value

_WIDTH = 12


class LocalBundle:
    """Runs members to the end of their budget."""

    def __init__(
        self,
        *,
        params: Sequence[Mapping[str, Value]],
        steps: int,
        seed: int,
        checkpoints: Path | None = None,
    ) -> None:
        self._runs = {
            str(number): LocalRuntime(
                params=one,
                steps=steps,
                seed=seed,
                checkpoints=checkpoints and checkpoints / str(number),
                number=number,
            )
            for number, one in enumerate(params)
        }
        self._titles = _titles(params)
        self._running = set(self._runs)
        self._failed = False
        self._header: tuple[str, ...] = ()

    def attach(self) -> Attached:
        """All members; raises `ValueError` if a folder contains a checkpoint of a different configuration."""
        members = tuple(Seat(lease=lease, assignment=run.attach()) for lease, run in self._runs.items())
        return Attached(members=members, seats=len(members))

    def turn(self, said: Said) -> Answer:
        """Prints a row for each reported step and metric, and continues to the budget."""
        for lease, read_time_s in said.restored:
            self._runs[lease].restored(read_time_s=read_time_s)
        self._print(dict(said.reports))
        decisions: list[tuple[str, Decision]] = []
        for lease, report in said.reports:
            decision = self._runs[lease].decide(report)
            decisions.append((lease, decision))
            if decision.action is not Action.CONTINUE:
                self._running.discard(lease)
        for one in said.finished:
            self._running.discard(one.lease)
            if one.error:
                self._failed = True
                print(f"member {self._titles[int(one.lease)]} failed: {one.error}", flush=True)
        return Answer(decisions=tuple(decisions), over=not self._running)

    def finish(self, end: Ended) -> None:
        """Raises `SystemExit` with status 1 if a member failed. An exception is shown by Python."""
        if self._failed and not end.error:
            raise SystemExit(1)

    def _print(self, reports: Mapping[str, Report]) -> None:
        rows: dict[tuple[int, str], dict[str, float]] = {}
        for lease, report in reports.items():
            for name, value in report.metrics.items():
                rows.setdefault((report.step, name), {})[lease] = value
        if not rows:
            return
        named = max(len(name) for _, name in rows)
        widths = [max(_WIDTH, len(title)) for title in self._titles]
        header = ("step", "metric".ljust(named), *map(str.rjust, self._titles, widths))
        if header != self._header:
            self._header = header
            print(f"{header[0]:>6}  " + "  ".join(header[1:]))
        for (step, name), values in sorted(rows.items(), key=lambda row: row[0][0]):
            cells = [
                f"{values[lease]:.6g}" if lease in values else "-" for lease in sorted(self._runs, key=int)
            ]
            print(
                f"{step:>6}  {name:<{named}}  " + "  ".join(map(str.rjust, cells, widths)),
                flush=True,
            )


def _titles(params: Sequence[Mapping[str, Value]]) -> list[str]:
    """The parameters in which the members differ."""
    first = params[0]
    differing = [name for name in first if any(one[name] != first[name] for one in params)]
    return [
        " ".join(f"{name}={one[name]}" for name in differing) or f"member {number}"
        for number, one in enumerate(params)
    ]
