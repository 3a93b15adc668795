"""Bounds of the calls of users (study.proto)."""

from typing import Final

from google.protobuf.descriptor import Descriptor

from headrace.bounds import numbers as n
from headrace.bounds.kinds import Bound, Entries, Items, Real, Span, Text, Told, Unbounded, Whole
from headrace.bounds.specs import NAME, PROSE, SLOTS, STEPS, TEXT
from headrace.v1 import study_pb2

REQUEST_ID: Final = Text(128, remedy="Use a UUID.")
STUDY: Final = Text(128, remedy="Write it as studies/STUDY.")
TRIAL: Final = Text(128, remedy="Write it as studies/STUDY/trials/NUMBER.")
PROJECT: Final = Text(128, remedy="Write it as projects/PROJECT.")
MOST: Final = Whole(0, n.INT32, remedy="Leave it out for no limit.")
PARENT: Final = Text(128, remedy="Write it as studies/STUDY or studies/STUDY/trials/NUMBER.")
PAGE_SIZE: Final = Whole(0, n.INT32, remedy="Give 1 to 1000, or 0 for 100.")
PAGE_TOKEN: Final = Text(n.TEXT, remedy="Pass the token of the last answer unchanged.")
METRICS: Final = Entries(
    n.METRICS, NAME, Unbounded("NaN and infinities are results too"), remedy=f"Report at most {n.METRICS}."
)
CURSOR: Final = Whole(
    0, n.EXACT, remedy="Give the cursor of the last event that you saw, or 0 for all events."
)
WORKER: Final = Text(256, remedy="Write it as workers/WORKER.")
FILTER: Final = Text(4096, prose=True, remedy="Shorten it.")
POINTS: Final = Whole(2, 10_000, remedy="Give 2 to 10,000, or 0 for 1000.")
TAGS: Final = Items(32, Text(64, remedy="Shorten it."))
REASON: Final = Text(500, remedy="Say it in a sentence.")
DEVICES: Final = Items(n.DEVICES, Whole(0, 1_000_000), remedy="Name none, for all devices of the worker.")
NUMBER: Final = Whole(0, n.EXACT, remedy="Give the number of a trial.")
DIGEST: Final = Text(64, remedy="Give a SHA-256 in hex.")
PROOF: Final = Text(64, remedy="Pass it on unchanged, or leave it out.")
ERROR: Final = Told(n.TEXT)
LEASE_TIME: Final = Span(1, 30 * 86_400)
JOIN_TIME: Final = Span(1, 30 * 86_400)
PEM: Final = Text(8192, prose=True, remedy="Send it in PEM.")

# 0 means that this field of the two is not set; it is not a valid number to give.
_MORE_TRIALS: Final = Whole(0, n.TRIALS, remedy=f"Give how many trials more, from 1 to {n.TRIALS}.")
_MORE_STEPS: Final = Whole(0, n.STEPS, remedy="Give the new full budget in steps, such as 81.")

_OWN: Final[dict[str, dict[str, Bound]]] = {
    "CreateStudyRequest": {"study_id": NAME},
    "StopStudyRequest": {"reason": PROSE},
    "AddTrialsRequest": {"parameters": Items(1000, remedy="Split them over several calls.")},
    "RetryTrialsRequest": {
        "trial_numbers": Items(10_000, NUMBER, remedy="Name none, for all trials that failed.")
    },
    "ForgetCheckpointsRequest": {
        "uris": Items(1000, TEXT, remedy="Split them over several calls."),
        "cursor": CURSOR,
    },
    "ExtendStudyRequest": {"trials": _MORE_TRIALS, "steps": _MORE_STEPS},
    "ListStudiesRequest": {"filter": FILTER},
    "ListTrialsRequest": {"states": Items(16), "filter": FILTER, "order_by": NAME},
    "ReadCurvesRequest": {"filter": FILTER, "metrics": Items(64, NAME), "most_points": POINTS},
    "AnnotateRequest": {"name": PARENT, "add_tags": TAGS, "remove_tags": TAGS, "note": PROSE},
    "StopTrialRequest": {"reason": PROSE},
    "WatchStudyRequest": {"after_cursor": CURSOR},
    "PreviewStudyRequest": {
        "slots": SLOTS,
        "seconds_per_step": Real(0, 1e6),
        "target_seconds_per_step": Real(0, 1e6),
    },
    "SuggestTrialRequest": {"client_id": NAME, "lease_time": LEASE_TIME},
    "LeaseRef": {"lease_id": NAME, "trial": TRIAL, "attempt": Whole(0, n.ATTEMPT), "proof": PROOF},
    "ReportTrialRequest": {"step": STEPS, "metrics": METRICS, "checkpoint_uri": TEXT},
    "CompleteTrialRequest": {"error": ERROR},
    "ReadLogRequest": {"name": TRIAL, "cursor": PAGE_TOKEN, "within": Span(0, n.SECONDS)},
    "ListReportsRequest": {"parent": PARENT},
    "DrainWorkerRequest": {"reason": REASON, "grace": Span(0, n.SECONDS)},
    "CordonDevicesRequest": {"devices": DEVICES, "reason": REASON},
    "UncordonDevicesRequest": {"devices": DEVICES},
    "JoinRequest": {"token": TEXT, "worker": NAME, "signing_request": PEM},
    "RenewRequest": {"signing_request": PEM},
    "CreateJoinTokenRequest": {"worker": NAME, "uses": Whole(0, n.COUNT), "lifetime": JOIN_TIME},
    "RevokeJoinTokenRequest": {"id": NAME},
    "RevokeWorkerRequest": {"worker": NAME},
    "HasCodeRequest": {"digest": DIGEST},
    "PutCodeRequest": {"digest": DIGEST, "data": Unbounded("the method counts the bytes of all messages")},
    "GetCodeRequest": {"digest": DIGEST},
    "CreateProjectRequest": {
        "request_id": REQUEST_ID,
        "project_id": NAME,
        "slots": MOST,
        "studies": MOST,
        "code_mib": MOST,
    },
    "ListProjectsRequest": {"page_size": PAGE_SIZE, "page_token": PAGE_TOKEN},
    "SetProjectRequest": {"request_id": REQUEST_ID, "name": PROJECT},
    "ProjectLimit": {"most": MOST},
}
"""Bounds of individual fields."""

_BY_NAME: Final[dict[str, Bound]] = {
    "request_id": REQUEST_ID,
    "study": STUDY,
    "worker": WORKER,
    "page_size": PAGE_SIZE,
    "page_token": PAGE_TOKEN,
}
_NAMES: Final[dict[str, Bound]] = {"StudyRequest": STUDY, "TrialRequest": TRIAL}
"""The bound of the field `name` in requests on one study or one trial, by the end of the message's name."""


def _bounds(message: Descriptor) -> dict[str, Bound]:
    """The bounds of a request to the StudyService."""
    named = [bound for end, bound in _NAMES.items() if message.name.endswith(end)]
    usual = _BY_NAME | ({"name": named[0]} if named else {})
    return {field.name: usual[field.name] for field in message.fields if field.name in usual}


_REQUESTS: Final = {
    method.input_type.name: _bounds(method.input_type)
    for method in study_pb2.DESCRIPTOR.services_by_name["StudyService"].methods
}
CALLS: Final = {name: _REQUESTS.get(name, {}) | _OWN.get(name, {}) for name in [*_REQUESTS, *_OWN]}
