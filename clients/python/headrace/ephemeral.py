"""What users are told about ephemeral slots.

Users know them as bubbles: `bubbles: true` in a study file, `IN BUBBLES` in a table. The scheduler's core only
knows an owner and a duty cycle, and takes its sentences from here.
"""

RULE = "bubbles"
"""The rule of a placement on an ephemeral slot."""


def owner_stage(job: str, stage: int) -> str:
    """The owner of an ephemeral slot: the stage of a large job."""
    return f"job {job}, stage {stage}"


def placed(owner_stage: str) -> str:
    """Where a trial was placed."""
    return f"in bubbles of {owner_stage}"


def device(kind: str, owner_stage: str) -> str:
    """The kind of device on which bundles on ephemeral slots are measured."""
    return f"{kind} {placed(owner_stage)}".lstrip()


def leaves_for_last_rung(owner_stage: str) -> str:
    """Why a trial leaves its ephemeral slot to run to the last rung."""
    return f"it leaves the bubbles of {owner_stage}: the last rung has a slot of its own"


def leaves_for_own_slot(owner_stage: str) -> str:
    """Why a trial leaves its ephemeral slot to run to another rung."""
    return f"it leaves the bubbles of {owner_stage}: a slot of its own is free"
