"""A whole made-up study in memory: what a scheduler would have stored and sent, as protos.

`race` plays ASHA by promotion on a few slots with made-up curves. It writes the event log along the way, with a
copy of the study and its trials after each event, so that a fake service can show any moment. Nothing is random:
trial n's curve depends only on n, and the clock is a counter.
"""

from dataclasses import dataclass, field
from datetime import UTC, datetime, timedelta

from headrace.spec import StudySpec, params_to_proto, parse_spec, to_proto
from headrace.v1 import event_pb2, study_pb2, trial_pb2

RUNGS = (1, 3, 9, 27)
ETA = 3
BEGAN = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
SPEC = {
    "objective": {"metric": "val_loss", "goal": "minimize"},
    "space": {
        "optimizer": {"type": "categorical", "values": ["adam", "sgd"]},
        "lr": {"type": "float", "low": 1e-4, "high": 1e-1, "log": True},
        "width": {"type": "int", "low": 16, "high": 256},
        "momentum": {
            "type": "float",
            "low": 0.0,
            "high": 0.99,
            "conditions": [{"parameter": "optimizer", "values": ["sgd"]}],
        },
    },
    "policy": {"kind": "asha", "eta": ETA, "rungs": list(RUNGS)},
    "template": {"callable": "train:train", "working_dir": "/nowhere"},
    "max_trials": 27,
    "max_steps": 27,
    "baseline": {"optimizer": "adam", "lr": 0.001, "width": 64},
    "seed": 7,
}


@dataclass
class Moment:
    """The study and its trials after one event."""

    study: study_pb2.Study
    trials: list[trial_pb2.Trial]


@dataclass
class Script:
    """A study from its first event to its last."""

    spec: StudySpec
    events: list[event_pb2.Event] = field(default_factory=list)
    moments: list[Moment] = field(default_factory=list)
    reports: list[study_pb2.TrialReport] = field(default_factory=list)

    @property
    def name(self) -> str:
        return self.final.study.name

    @property
    def final(self) -> Moment:
        return self.moments[-1]


def spec() -> StudySpec:
    return parse_spec(SPEC)


def value_of(number: int, step: int) -> float:
    """The made-up learning curve of a trial."""
    floor = 0.12 + 0.9 * ((number * 37) % 29) / 29
    return floor + (1.6 - floor / 2) * step ** -(0.35 + 0.5 * ((number * 11) % 7) / 7)


def params_of(number: int) -> dict[str, bool | int | float | str]:
    if number == 0:
        return dict(SPEC["baseline"])  # type: ignore[call-overload]
    values: dict[str, bool | int | float | str] = {
        "lr": 10 ** -(1 + 3 * ((number * 37) % 29) / 29),
        "width": 16 + (number * 53) % 240,
    }
    if number % 2:
        return {"optimizer": "sgd", **values, "momentum": ((number * 17) % 99) / 100}
    return {"optimizer": "adam", **values}


class Race:
    """Plays a study and records it."""

    def __init__(self, name: str, trials: int, slots: int) -> None:
        self.script = Script(spec=spec())
        self.study = study_pb2.Study(
            name=f"studies/{name}", spec=to_proto(self.script.spec), state=study_pb2.STUDY_STATE_ACTIVE
        )
        self.study.create_time.FromDatetime(BEGAN)
        self.study.status.steps_run_all = (trials + 1) * RUNGS[-1]
        for index, milestone in enumerate(RUNGS):
            self.study.status.rungs.add(rung=index, milestone=milestone)
        self.trials: list[trial_pb2.Trial] = []
        self.total = trials + 1
        self.slots = slots
        self.at_rung: list[list[int]] = [[] for _ in RUNGS]
        self.seconds = 0.0

    def run(self) -> Script:
        self._event(None, "study created", study_moved=event_pb2.StudyMoved(to_state="ACTIVE"))
        slot = 0
        while (number := self._next()) is not None:
            self._attempt(number, slot)
            slot = (slot + 1) % self.slots
        for trial in self.trials:
            if trial.state == trial_pb2.TRIAL_STATE_PAUSED:
                self._terminate(
                    trial, trial_pb2.TERMINATION_REASON_STOPPED_EARLY, "the study ended while it waited"
                )
        self.study.state = study_pb2.STUDY_STATE_COMPLETED
        self.study.end_time.FromDatetime(self._now())
        self._event(
            None,
            "study completed",
            study_moved=event_pb2.StudyMoved(from_state="ACTIVE", to_state="COMPLETED"),
        )
        return self.script

    def _next(self) -> int | None:
        for rung in range(len(RUNGS) - 2, -1, -1):
            ranked = sorted(self.at_rung[rung], key=lambda n: value_of(n, RUNGS[rung]))
            for number in ranked[: len(ranked) // ETA]:
                result = self.trials[number].rung_results[rung]
                if not result.promoted:
                    result.promoted = True
                    return number
        if len(self.trials) < self.total:
            return self._create(len(self.trials))
        return None

    def _create(self, number: int) -> int:
        trial = trial_pb2.Trial(
            name=f"{self.study.name}/trials/{number}",
            number=number,
            state=trial_pb2.TRIAL_STATE_PENDING,
            parameters=params_to_proto(params_of(number)),
            baseline=number == 0,
        )
        trial.create_time.FromDatetime(self._now())
        self.trials.append(trial)
        self._event(
            number,
            f"trial {number} proposed",
            trial_created=event_pb2.TrialCreated(parameters=trial.parameters, baseline=number == 0),
        )
        return number

    def _attempt(self, number: int, slot: int) -> None:
        trial = self.trials[number]
        resumed = trial.state == trial_pb2.TRIAL_STATE_PAUSED
        trial.attempt += 1
        trial.worker, trial.log_path = "workers/node-1", f"/var/log/headrace/{number}.log"
        trial.slots[:] = [slot]
        if not resumed:
            trial.start_time.FromDatetime(self._now())
        self._move(trial, trial_pb2.TRIAL_STATE_RUNNING, "resume" if resumed else "launch")
        if number == 13 and not resumed:
            self.seconds += 1
            trial.failures = 2
            trial.log_tail = (
                "Traceback (most recent call last):\n  ...\nValueError: loss is \x1b[31mnan\x1b[0m <b>\n"
            )
            self._terminate(trial, trial_pb2.TERMINATION_REASON_FAILED, "ValueError: loss is nan <b>[bold]")
            return
        target = RUNGS[-1] if number == 0 else next(r for r in RUNGS if r > trial.step)
        for step in range(trial.step + 1, target + 1):
            self._report(trial, step)
        rung = RUNGS.index(target)
        if number:
            self._record(trial, rung)
        if target == RUNGS[-1]:
            self._terminate(trial, trial_pb2.TERMINATION_REASON_COMPLETED, "reached the full budget")
            return
        self._decide(trial, rung)
        self._move(trial, trial_pb2.TRIAL_STATE_PAUSED, "pause")

    def _report(self, trial: trial_pb2.Trial, step: int) -> None:
        self.seconds += 0.9 + (trial.number % 5) / 10
        value = value_of(trial.number, step)
        metrics = {"val_loss": value, "accuracy": 1 - value / 3}
        trial.step, trial.value = step, value
        trial.steps_spent += 1
        for name, item in metrics.items():
            trial.metrics[name] = item
        if not trial.HasField("best_value") or value < trial.best_value:
            trial.best_value, trial.best_step = value, step
            trial.score, trial.score_step = value, step
        report = study_pb2.TrialReport(
            trial_number=trial.number, attempt=trial.attempt, sequence=step, step=step, metrics=metrics
        )
        report.time.FromDatetime(self._now())
        self.script.reports.append(report)
        self._event(
            trial.number,
            f"trial {trial.number} reported step {step}",
            report_recorded=event_pb2.ReportRecorded(
                attempt=trial.attempt, sequence=step, step=step, metrics=metrics
            ),
        )

    def _record(self, trial: trial_pb2.Trial, rung: int) -> None:
        self.at_rung[rung].append(trial.number)
        result = trial.rung_results.add(
            rung=rung,
            milestone=RUNGS[rung],
            step=trial.step,
            value=trial.value,
            arrival=len(self.at_rung[rung]),
        )
        self._event(
            trial.number,
            f"trial {trial.number} recorded at the rung at step {RUNGS[rung]}",
            rung_recorded=event_pb2.RungRecorded(result=result),
        )

    def _decide(self, trial: trial_pb2.Trial, rung: int) -> None:
        values = sorted(value_of(n, RUNGS[rung]) for n in self.at_rung[rung])
        kept = len(values) // ETA
        rank = values.index(trial.value) + 1 if trial.number else 0
        why = event_pb2.Explanation(
            rule="asha_promotion",
            rung=rung,
            milestone=RUNGS[rung],
            value=trial.value,
            rank=rank,
            results=len(values),
            kept=kept,
            sentence=f"rank {rank} of {len(values)} at step {RUNGS[rung]}; the best {kept} are promoted, so it waits",
        )
        if kept:
            why.cutoff_value = values[kept - 1]
        why.slot_goes_to = f"{self.study.name}/trials/{(trial.number + 1) % self.total}"
        self._event(
            trial.number,
            f"trial {trial.number} paused: {why.sentence}",
            decision_made=event_pb2.DecisionMade(action=event_pb2.DECISION_ACTION_PAUSE, explanation=why),
        )

    def _terminate(
        self, trial: trial_pb2.Trial, reason: trial_pb2.TerminationReason.ValueType, detail: str
    ) -> None:
        trial.termination_reason, trial.detail = reason, detail
        trial.end_time.FromDatetime(self._now())
        self._move(trial, trial_pb2.TRIAL_STATE_TERMINATED, "terminate", reason, detail)

    def _move(
        self,
        trial: trial_pb2.Trial,
        state: trial_pb2.TrialState.ValueType,
        action: str,
        reason: trial_pb2.TerminationReason.ValueType = trial_pb2.TERMINATION_REASON_UNSPECIFIED,
        detail: str = "",
    ) -> None:
        moved = event_pb2.TrialMoved(
            from_state=trial.state,
            to_state=state,
            action=action,
            attempt=trial.attempt,
            worker=trial.worker,
            slots=trial.slots,
            termination_reason=reason,
            detail=detail,
        )
        trial.state = state
        if state != trial_pb2.TRIAL_STATE_RUNNING:
            trial.worker = ""
            del trial.slots[:]
        self._event(trial.number, f"trial {trial.number}: {action} {detail}".strip(), trial_moved=moved)

    def _event(self, number: int | None, message: str, **detail: object) -> None:
        event = event_pb2.Event(
            cursor=len(self.script.events) + 1,
            trial_number=number,
            message=message,
            **detail,  # type: ignore[arg-type]
        )
        event.time.FromDatetime(self._now())
        self.script.events.append(event)
        self._count()
        moment = Moment(study=study_pb2.Study(), trials=[])
        moment.study.CopyFrom(self.study)
        for trial in self.trials:
            copy = trial_pb2.Trial()
            copy.CopyFrom(trial)
            moment.trials.append(copy)
        self.script.moments.append(moment)

    def _count(self) -> None:
        status = self.study.status
        states = [trial.state for trial in self.trials]
        reasons = [trial.termination_reason for trial in self.trials]
        status.pending = states.count(trial_pb2.TRIAL_STATE_PENDING)
        status.running = states.count(trial_pb2.TRIAL_STATE_RUNNING)
        status.paused = states.count(trial_pb2.TRIAL_STATE_PAUSED)
        status.terminated = states.count(trial_pb2.TRIAL_STATE_TERMINATED)
        status.completed = reasons.count(trial_pb2.TERMINATION_REASON_COMPLETED)
        status.stopped_early = reasons.count(trial_pb2.TERMINATION_REASON_STOPPED_EARLY)
        status.failed = reasons.count(trial_pb2.TERMINATION_REASON_FAILED)
        status.steps_spent = sum(trial.steps_spent for trial in self.trials)
        status.cursor = len(self.script.events)
        valued = [t for t in self.trials if t.HasField("best_value") and not t.baseline]
        if valued:
            status.best.CopyFrom(min(valued, key=lambda t: t.best_value))
        if self.trials:
            status.baseline.CopyFrom(self.trials[0])
        for index, rung in enumerate(status.rungs):
            rung.recorded = len(self.at_rung[index])
            rung.promoted = sum(self.trials[n].rung_results[index].promoted for n in self.at_rung[index])

    def _now(self) -> datetime:
        return BEGAN + timedelta(seconds=self.seconds / self.slots)


def race(name: str = "digits", *, trials: int = 27, slots: int = 2) -> Script:
    """A study with `trials` trials beside its baseline, played to the end; trial 13 fails."""
    return Race(name, trials, slots).run()
