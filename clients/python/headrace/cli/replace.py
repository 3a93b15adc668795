"""`headrace run --replace`: deletes the studies of an earlier run, if all of them have ended."""

from contextlib import suppress

from headrace.cli.failure import CommandError
from headrace.client import Client
from headrace.client.model import StudyState
from headrace.errors import StudyNotFoundError
from headrace.spec import StudySpec
from headrace.spec.pilot import pilot_name
from headrace.spec.surrogate import gate_name


def delete_ended(client: Client, study_id: str, spec: StudySpec) -> None:
    """Delete a study and the studies created with it. Raises CommandError, before anything is deleted, if one of
    them has not ended. A gate that has passed with the same key is kept.
    """
    names = [study_id]
    if spec.transfer is not None:
        names.insert(0, spec.transfer.study_name(study_id))
    if spec.gate_study() is not None and not _has_passed(client, gate_name(study_id), spec):
        names.insert(0, gate_name(study_id))
    there = []
    if spec.surrogate is not None and spec.surrogate.pilot is not None:
        names.insert(0, pilot_name(study_id))
    for name in names:
        with suppress(StudyNotFoundError):
            state = client.study(name).status().state
            if not state.ended:
                raise CommandError(
                    f"study '{name}' is {state.value}, so --replace does not delete it.",
                    remedy=f"End it first with `headrace stop {name}`, or give --suffix instead.",
                )
            there.append(name)
    for name in there:
        with suppress(StudyNotFoundError):
            client.study(name).delete()


def _has_passed(client: Client, gate: str, spec: StudySpec) -> bool:
    """Whether a gate of this name has passed for what the study's gate would check."""
    with suppress(StudyNotFoundError):
        old = client.study(gate).status()
        key = spec.gate.key if spec.gate is not None else ""
        known = old.spec.gate.key if old.spec.gate is not None else ""
        return bool(key) and known == key and old.state is StudyState.COMPLETED
    return False
