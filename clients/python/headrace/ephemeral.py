"""What users are told of ephemeral slots. They know them as bubbles: `bubbles: true` in a study file, `IN BUBBLES` in a
table. The scheduler's core knows an owner and a duty cycle alone, and takes its sentences from here."""

RULE = "bubbles"
"""The rule of a placement on an ephemeral slot."""


def owner_stage(job: str, stage: int) -> str:
    """The owner of an ephemeral slot: the stage of a large job."""
    return f"job {job}, stage {stage}"


def placed(owner_stage: str) -> str:
    """Where a trial was placed."""
    return f"in bubbles of {owner_stage}"


def device(kind: str, owner_stage: str) -> str:
    """The kind of device that bundles on ephemeral slots are measured on."""
    return f"{kind} {placed(owner_stage)}".lstrip()


def leaves_for_last_rung(owner_stage: str) -> str:
    """Why a trial leaves its ephemeral slot on the way to the last rung."""
    return f"it leaves the bubbles of {owner_stage}: the last rung has a slot of its own"


def leaves_for_own_slot(owner_stage: str) -> str:
    """Why a trial leaves its ephemeral slot on the way to another rung."""
    return f"it leaves the bubbles of {owner_stage}: a slot of its own is free"
