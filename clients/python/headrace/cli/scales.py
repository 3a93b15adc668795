"""What is shown about the scales that pilots find: by `run` when a study is created, and in the summaries of its
studies.
"""

from headrace.cli import wording
from headrace.client.model import ScaleTried, StudyInfo
from headrace.spec.pilot import SCALE


def is_pilot(study: StudyInfo) -> bool:
    """Whether a study is the pilot of another one."""
    surrogate = study.spec.surrogate
    return surrogate is not None and surrogate.scale_by == SCALE


def own_pilot(study: StudyInfo) -> str | None:
    """The name of the pilot that was created with a study; None if there is none."""
    surrogate = study.spec.surrogate
    return surrogate.pilot.study or None if surrogate is not None and surrogate.pilot is not None else None


def said_at_creation(study: StudyInfo) -> str | None:
    """What `run` says about a study's pilot; None without one."""
    pilot = own_pilot(study)
    if pilot is None:
        return None
    return f"study {pilot} first finds how small the copy may be; it also trains the model itself"


def size_of(study: StudyInfo) -> str:
    """How small the copies of a study are."""
    surrogate = study.spec.surrogate
    assert surrogate is not None
    if surrogate.width:
        return f"width {surrogate.width}"
    choice = study.scale_choice
    scale = surrogate.scale if choice is None else choice.scale
    return f"1/{scale} of its width" if scale else "a scale that is not chosen"


def lines_of(study: StudyInfo) -> list[tuple[str, str]]:
    """Which scale was chosen and why; for a pilot, what it compares."""
    if is_pilot(study):
        scales = [scale for scale in study.spec.space[SCALE].values if scale != 1]  # type: ignore[union-attr]  # the scale of a pilot is categorical
        each = study.spec.max_trials // (1 + len(scales))
        listed = ", ".join(f"1/{scale}" for scale in scales)
        compares = f"{each} configurations on the model itself and on copies of {listed} of its width"
        return [("compares", compares), ("", "the smallest copy that ranks them like the model is chosen")]
    pilot, choice = own_pilot(study), study.scale_choice
    if pilot is None:
        return []
    if choice is None:
        return [("scale", f"auto: study {pilot} has not chosen one")]
    asked = f"τ ≥ {wording.number(choice.least_kendall)}, regret ≤ {wording.number(choice.most_regret)}"
    why = f"the smallest copy that ranks as the model does in study {choice.study} ({asked})"
    lines = [("scale", f"{choice.scale}, {why}")]
    return lines + [(f"  scale {one.scale}", _came_to(one)) for one in choice.tried]


def _came_to(one: ScaleTried) -> str:
    regret = "the first five failed" if one.regret is None else f"regret {wording.number(one.regret)}"
    return f"τ {wording.number(one.kendall)}, {regret}: {'agrees' if one.agrees else 'does not agree'}"
