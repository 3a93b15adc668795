"""A summary of a run in words: what was found, compared to what, and at what cost (figures:
`headrace.client.outcome`).
"""

from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from headrace.cli import gates, plans, scales, views, wording
from headrace.cli.output import Output, clean
from headrace.cli.populations import schedule_lines
from headrace.client import Client
from headrace.client.deleted import Deleted, deleted_checkpoint
from headrace.client.lineage import Stretch
from headrace.client.model import (
    Checkpoint,
    StudyInfo,
    StudyState,
    TerminationReason,
    TrialInfo,
    TrialState,
    Value,
)
from headrace.client.outcome import Outcome
from headrace.client.transfer import Transferred
from headrace.first_few import first_few
from headrace.spec import BestOfSampler, Scope

FRONT_ROWS = 8
_PLACES = ("checkpoint", "report", "plot")
"""The lines that may contain a path; they come last."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Summary:
    """A study that has ended, or the current state of one that is running."""

    study: StudyInfo
    report: Path | None = None
    transferred: Transferred | None = None
    schedule: tuple[Stretch, ...] = ()
    """For a population: the values that its best state was trained with."""
    deleted: Deleted | None = None
    """The checkpoint that the best trial had, if it was deleted."""

    @property
    def outcome(self) -> Outcome:
        """The study's figures."""
        return Outcome(self.study)

    def json(self) -> dict[str, Any]:
        """The summary as JSON. `headrace run --json` prints this last, on one line."""
        best = None if self.outcome.several else self.study.best
        counts = self.study.counts
        return {
            "type": "summary",
            "study": self.study.name,
            "state": self.study.state.value,
            "detail": self.study.detail,
            "unshown": self.study.unshown,
            "metric": self.study.spec.objective.metric,
            "goal": self.study.spec.objective.goal,
            "scope": self.study.spec.objective.scope,
            "k": self.study.spec.objective.k,
            "best": views.trial(best) if best else None,
            "front": [views.trial(trial) for trial in self.study.front],
            "baseline": views.trial(self.study.baseline) if self.study.baseline else None,
            "baseline_value": self.outcome.baseline_value,
            "improvement": self.outcome.improvement,
            "steps_spent": self.study.steps_spent,
            "steps_run_all": self.study.steps_run_all,
            "saved_percent": self.outcome.saved_percent,
            "trials": counts.total,
            "completed": counts.completed,
            "stopped_early": counts.stopped_early,
            "failed": counts.failed,
            "cancelled": counts.cancelled,
            "infeasible": counts.infeasible,
            "failures": [views.failure(one) for one in self.study.failures],
            "scale_choice": asdict(choice) if (choice := self.study.scale_choice) else None,
            "transferred": views.transferred(self.transferred) if self.transferred else None,
            "code_changed": list(self.study.code_changed),
            "wall_time_s": self.outcome.wall_time_s,
            "report": self.report,
        }

    def lines(self) -> list[tuple[str, str]]:
        """The summary for people, as labels and texts."""
        study = self.study
        metric = study.spec.objective.metric
        lines: list[tuple[str, str]] = []
        lines += scales.lines_of(study)
        lines += plans.lines_of(study)
        if (checked := gates.said_of(study)) is not None:
            lines.append(("gate", checked))
        if gates.is_gate(study):
            lines += gates.lines_of(study)
        elif scales.is_pilot(study):
            pass  # its best trial is most likely one of the full model, and means nothing
        elif self.outcome.several:
            lines += self._front_lines()
        elif study.best is None:
            lines.append(("best", f"no trial reported a finite value{self._that_meets()}"))
        else:
            failed = ", which failed after it had reported" if study.best.flaw == "failed" else ""
            lines.append(("best", f"{metric} {self._at(study.best)}, trial {study.best.number}{failed}"))
            if keeps := wording.kept_result(study.best):
                lines.append(("", f"it {keeps}"))
            lines += [(f"  {name}", exact(value)) for name, value in study.best.params.items()]
            lines += schedule_lines(self.schedule, study)
        lines += self._transfer_lines()
        lines += self._baseline_lines()
        if ends := wording.until_now(study):
            lines.append(("until", ends))
        lines.append(("steps", self._steps()))
        lines.append(("trials", self._trials()))
        lines += self._code_lines()
        lines += self._warm_start_lines()
        lines += self._bundle_lines()
        failures = wording.failures(study)
        if failures is not None and not gates.is_gate(study):  # its end says everything
            lines.append(("failures", failures))
            shown = "shows the log's end" if study.spec.template else "tells what happened"
            lines.append(("", f"headrace why {study.name} {study.failures[0].trial} {shown}"))
        if self.outcome.wall_time_s is not None:
            lines.append(("wall time", wording.duration(self.outcome.wall_time_s)))
        if not self.outcome.several and study.best is not None and self._searches:
            lines += self._checkpoint_lines(study.best)
        if self.report is not None:
            lines.append(("report", str(self.report)))
        return lines

    @property
    def _searches(self) -> bool:
        """Whether the study was run to find its best trial. A gate and a pilot are run for what they find out."""
        return not (gates.is_gate(self.study) or scales.is_pilot(self.study))

    def _transfer_lines(self) -> list[tuple[str, str]]:
        """Each configuration that was transferred, with its result; and the regret."""
        done = self.transferred
        if done is None or not done.trials:
            return []
        metric = self.study.spec.objective.metric
        order = "the best one first" if not done.eager else "in the order in which they were taken"
        lines = [("taken over", f"the best configurations of study {done.source_study}, {order}")]
        for trial in done.trials:
            came_to = f"{metric} {self._at(trial)}" if trial.score is not None else "no value yet"
            ended = f" ({trial.outcome.replace('_', ' ')})"
            lines.append((f"  trial {trial.source} there", f"{came_to}, as trial {trial.number} here{ended}"))
        for place, regret in enumerate(done.regrets[:-1], 1):
            if regret is not None:
                first = "the first one alone" if place == 1 else f"the best of the first {place}"
                text = f"{wording.number(regret)}: of {first}, against the best of all {len(done.trials)}"
                lines.append((f"regret of {place}", text))
        return lines

    def _bundle_lines(self) -> list[tuple[str, str]]:
        """How many trials share a process, on which device, and why."""
        fuse = self.study.spec.fuse
        if fuse is not None and not self.study.bundle_sizes:
            said = (
                "2 trials share a process until more is measured"
                if fuse.auto
                else f"up to {fuse.most} trials"
            )
            return [("bundles", said)]
        lines = []
        for one in self.study.bundle_sizes:
            apart = f" with {one.apart}" if one.apart else ""
            lines.append(f"up to {one.trials} trials on {one.device}{apart}: {one.reason}")
            if one.first_step_s:
                lines.append(wording.first_step(one))
        return [("bundles" if place == 0 else "", line) for place, line in enumerate(lines)]

    def _code_lines(self) -> list[tuple[str, str]]:
        """Lines on trials that ran different code, and whether the best ones did."""
        if not self.study.code_changed:
            return []
        text = f"{first_few(self.study.code_changed)} changed since the study began"
        if best := wording.best_of_other_code(self.study):
            text += f": {best}"
        return [("code", f"{text}; headrace trials {self.study.name} marks such trials")]

    def _warm_start_lines(self) -> list[tuple[str, str]]:
        results = self.study.warm_results
        if self.study.spec.warm_start is None or results is None:
            return []
        return [("warm start", f"the sampler began from {wording.warm_start(self.study, results)}")]

    def _checkpoint_lines(self, best: TrialInfo) -> list[tuple[str, str]]:
        if best.kept_checkpoint is not None:
            return [("checkpoint", saved(best, best.kept_checkpoint, self.study.spec.objective.metric))]
        if self.deleted is not None:
            return [("checkpoint", no_longer_saved(self.deleted))]
        if self.study.spec.template is None or not (best.rungs or best.state is TrialState.TERMINATED):
            return []
        if not best.rungs and best.reason is not TerminationReason.COMPLETED:
            ended = "failed" if best.flaw == "failed" else "ended"
            return [
                ("checkpoint", f"none: the trial {ended} before its first rung, where it would have saved")
            ]
        return [
            (
                "checkpoint",
                "none: nothing to load. A trial that tracks its state writes one at each rung, and at its own end",
            )
        ]

    def _front_lines(self) -> list[tuple[str, str]]:
        front, objectives = self.study.front, self.study.spec.objectives
        if self.outcome.front_left_out:
            return [("Pareto front", self.study.unshown)]
        if not front:
            return [("Pareto front", f"no trial reported all objectives{self._that_meets()}")]
        failed = "" if self.outcome.sound else "; all of them failed after they had reported"
        lines = [
            (
                "Pareto front",
                f"{wording.plural(len(front), 'trial')} that no other trial beats in every objective{failed}",
            )
        ]
        lines += [
            (
                f"  trial {trial.number}",
                f"{wording.objectives(trial, objectives)} ({wording.params(trial.params)})",
            )
            for trial in front[:FRONT_ROWS]
        ]
        if len(front) > FRONT_ROWS:
            lines.append(("  …", f"{len(front) - FRONT_ROWS} more: headrace best {self.study.name}"))
        return lines

    def _at(self, trial: TrialInfo) -> str:
        return wording.scored(trial, self.study.spec.objective)

    def _that_meets(self) -> str:
        constraints = ", ".join(map(str, self.study.spec.constraints))
        return f" with {constraints}" if constraints else ""

    def _baseline_lines(self) -> list[tuple[str, str]]:
        baseline = self.study.baseline
        if baseline is None:
            return []
        spec, value = self.study.spec, self.outcome.baseline_value
        steps = wording.plural(baseline.step, "step")
        if value is None:
            missing = wording.unreported(baseline, spec)
            text = missing or f"did not reach the full budget ({baseline.outcome}, {steps})"
        else:
            at_end = {one.metric: baseline.metrics.get(one.metric) for one in spec.objectives}
            at_end |= {spec.objective.metric: value}
            told = ", ".join(f"{metric} {wording.number(last)}" for metric, last in at_end.items())
            text = f"{told} at the full budget ({steps})"
        other = not self.outcome.several and baseline.score not in (None, value)
        if baseline.counted_end is not None or (value is not None and other):
            by_best = spec.objective.scope is Scope.BEST and value is not None
            which = f"its best{self._that_meets()} was" if by_best else "what counts is"
            text += f"; {which} {wording.counted(baseline, spec)}"
        if baseline.feasible is False:
            text += f"; {wording.misses(baseline, spec)}"
        lines = [("baseline", text)]
        improvement = self.outcome.improvement_text()
        if improvement is not None:
            lines.append(("improvement", improvement))
        return lines

    def _steps(self) -> str:
        study = self.study
        text = f"{study.steps_spent} of the {study.steps_run_all} that running every trial to the end takes"
        saved = self.outcome.saved_percent
        if saved is None and study.steps_spent > study.steps_run_all:
            return (
                f"{study.steps_spent}: trials that were lost repeat steps. Running every trial to the end takes "
                f"{study.steps_run_all}"
            )
        if saved is None:
            return f"{text}; the study ended before" if self.outcome.cut_off else text
        counts = self.study.counts
        lost = [
            ("failed", counts.failed),
            ("were cancelled", counts.cancelled),
            ("were infeasible", counts.infeasible),
        ]
        said = " and ".join(
            f"{wording.plural(count, 'trial')} {word if count > 1 else word.replace('were', 'was')}"
            for word, count in lost
            if count
        )
        because = f", in part because {said}" if said and saved > 0 else ""
        return f"{text} ({abs(saved):.0f} % {'saved' if saved >= 0 else 'more'}{because})"

    def _trials(self) -> str:
        counts = self.study.counts
        parts = [
            f"{counts.completed} completed",
            f"{counts.stopped_early} stopped early",
            f"{counts.failed} failed",
        ]
        if counts.cancelled:
            parts.append(f"{counts.cancelled} cancelled")
        if counts.infeasible:
            parts.append(f"{counts.infeasible} infeasible")
        live = counts.total - counts.terminated
        if live:
            parts.append(f"{live} live")
        return ", ".join(parts)


def deleted_of_best(client: Client, study: StudyInfo) -> Deleted | None:
    """The checkpoint that a study's best trial had; None if it has one to load or saved none, and with several
    objectives.
    """
    best = None if study.spec.further_objectives else study.best
    if best is None or best.kept_checkpoint is not None or best.state is not TrialState.TERMINATED:
        return None
    reports = client.study(study.name).trial(best.number).reports()
    return deleted_checkpoint(best, reports, study.spec)


def no_longer_saved(deleted: Deleted) -> str:
    """What is shown in place of the address of a checkpoint that was deleted."""
    return f"deleted ({deleted.of_step})" if deleted.of_step else "deleted"


def saved(trial: TrialInfo, checkpoint: Checkpoint, metric: str) -> str:
    """A trial's checkpoint and its step; if the value that counts is from another step, also the value there."""
    value = None if checkpoint.step == trial.score_step else Outcome.value_at(trial, checkpoint.step)
    there = "" if value is None else f", where {metric} is {wording.number(value)}"
    return f"{checkpoint.uri} (step {checkpoint.step}{there})"


def exact(value: Value) -> str:
    """A parameter for copying, with all its digits."""
    return repr(value) if isinstance(value, float) else wording.scalar(value)


def show_summary(summary: Summary, output: Output) -> None:
    """Prints the summary for people."""
    study = summary.study
    said = wording.ended(study.state, study.detail) + wording.waits(study)
    head = Text.assemble(("Study ", ""), (study.name, "bold"), " ", clean(said))
    output.line()
    output.line(head)
    if output.is_terminal:
        grid = Table.grid(padding=(0, 2))
        longest, width = max(len(label) for label, _ in summary.lines()) + 2, output.console.width
        grid.add_column(
            style="dim", overflow="fold", max_width=longest if longest <= width // 2 else width // 3
        )
        grid.add_column(overflow="fold")
        unbroken: list[tuple[str, str]] = []
        for label, text in summary.lines():
            if label in _PLACES and max(map(len, text.split())) > width - longest:
                unbroken.append((label, text))
            else:
                grid.add_row(clean(label), clean(text))
        output.show(grid)
        for label, text in unbroken:  # the terminal wraps these itself, so that they can be copied whole
            output.line(Text.assemble((label.ljust(longest), "dim"), clean(text)))
        return
    width = max(len(label) for label, _ in summary.lines())
    for label, text in summary.lines():
        output.line(f"{label.ljust(width)}  {text}")


def transferred(client: Client, study: StudyInfo) -> Transferred | None:
    """What a study took over from another one; None if it took over nothing."""
    if not isinstance(study.spec.sampler, BestOfSampler):
        return None
    return Transferred.of(study, client.study(study.name).trials())


def succeeded(study: StudyInfo) -> bool:
    """Whether `run` exits with 0: the study completed, with a result of a trial that did not fail."""
    return study.state is StudyState.COMPLETED and Outcome(study).sound
