"""What is shown about gates: by `run` when a study is created, and in the summaries of a study and of its gate."""

from headrace.cli import scales, wording
from headrace.client.model import StudyInfo, StudyState
from headrace.spec.surrogate import GATE, PLOT, gate_name

_PLACE = f"objects/plot/{PLOT}"
UNCHECKED = "OFF (gate: false): nothing checks whether the small copy's best configurations are best for the model too"


def is_gate(study: StudyInfo) -> bool:
    """Whether a study is the gate of another one."""
    template = study.spec.template
    return template is not None and template.callable == GATE


def own_gate(study: StudyInfo) -> str | None:
    """The name of the gate that was created with a study; None if there is none, or an earlier one had passed."""
    gate = study.spec.gate
    return gate.study if gate is not None and gate.study == gate_name(study.name) else None


def said_of(study: StudyInfo) -> str | None:
    """How a study's surrogate is checked; None without a surrogate."""
    surrogate, gate = study.spec.surrogate, study.spec.gate
    if surrogate is None or is_gate(study) or scales.is_pilot(study):
        return None
    if gate is not None and gate.off:
        return UNCHECKED
    if gate is None or not gate.study:
        return None
    if own_gate(study) and (study.steps_spent or study.state is StudyState.COMPLETED):  # until then it waited
        return f"passed, in study {gate.study}: the small copy represents the model"
    if own_gate(study):
        return f"study {gate.study}, which first checks whether the small copy represents the model"
    return f"passed before, in study {gate.study}: the same model, settings and version"


def lines_of(study: StudyInfo) -> list[tuple[str, str]]:
    """What a gate found."""
    surrogate, trial = study.spec.surrogate, study.best
    assert surrogate is not None
    checks = f"{surrogate.model} at {scales.size_of(study)}, trained with {surrogate.optimizer}"
    lines = [("checks", checks)]
    if study.state is StudyState.COMPLETED:
        lines.append(("verdict", "passed: the small copy represents the model"))
    if trial is not None and trial.score is not None:
        lines.append(
            (
                "worst slope",
                f"{wording.number(trial.score)}: how an activation's change grows with the width, ideally 0",
            )
        )
    if trial is not None and trial.checkpoint is not None:
        lines.append(("plot", f"{trial.checkpoint.uri.rstrip('/')}/{_PLACE}"))
    return lines
