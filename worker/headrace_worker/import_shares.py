"""How much of a study's processor time goes into imports, and what to do about it."""

from collections import OrderedDict
from dataclasses import dataclass

from headrace.v1 import runtime_pb2, spec_pb2

_ATTEMPTS = 8
"""The advice is given after so many attempts of a study on this worker."""
_SHARE = 0.5
_STUDIES = 256


@dataclass(slots=True)
class _Spent:
    attempts: int = 0
    imports_s: float = 0.0
    processor_s: float = 0.0
    said: bool = False


class ImportShares:
    """The processor time of studies whose trials have a process for each attempt."""

    def __init__(self) -> None:
        self._studies: OrderedDict[str, _Spent] = OrderedDict()

    def ended(
        self, study_uid: str, template: spec_pb2.TrialTemplate, request: runtime_pb2.FinishRequest | None
    ) -> str:
        """An attempt ended with this message; returns advice, once for a study, or nothing."""
        if request is None or template.reuse or not request.HasField("processor"):
            return ""
        spent = self._studies.setdefault(study_uid, _Spent())
        self._studies.move_to_end(study_uid)
        if len(self._studies) > _STUDIES:
            self._studies.popitem(last=False)
        spent.attempts += 1
        spent.imports_s += request.processor_of_imports.ToTimedelta().total_seconds()
        spent.processor_s += request.processor.ToTimedelta().total_seconds()
        if spent.said or spent.attempts < _ATTEMPTS or spent.imports_s <= _SHARE * spent.processor_s:
            return ""
        spent.said = True
        share = spent.imports_s / max(spent.processor_s, spent.imports_s, 1e-9)
        return (
            f"{share:.0%} of the processor time of the study's first {spent.attempts} attempts on this worker went "
            "into imports: try `trial: {reuse: true}`; `headrace check --reuse` tells whether it is safe"
        )
