"""The table: every field that a service receives, with its bound.

Fields are listed under their message. Fields whose type bounds them are left out: flags, enumerations (a
known value is required), and single messages, whose own fields are in the table. A test walks the descriptors
and fails if a field has no bound. `SIZES` bounds the encoded size of whole messages; gRPC rejects anything
over 4 MiB.
"""

from typing import Final

from headrace.bounds import numbers as n
from headrace.bounds.bubbles import BUBBLES
from headrace.bounds.calls import CALLS
from headrace.bounds.identities import IDENTITIES
from headrace.bounds.kinds import Bound
from headrace.bounds.planning import PLANNING
from headrace.bounds.sessions import SESSIONS
from headrace.bounds.specs import SPECS

LIMITS: Final[dict[str, dict[str, dict[str, Bound]]]] = {
    "Studies": SPECS,
    "Calls": CALLS,
    "Workers and trials": SESSIONS,
    "Tokens": IDENTITIES,
    "Planner": PLANNING,
    "Bubble agents": BUBBLES,
}
"""The table, grouped by who sends the messages, as on the reference page."""

TABLE: Final[dict[str, dict[str, Bound]]] = {
    **SPECS,
    **CALLS,
    **SESSIONS,
    **IDENTITIES,
    **PLANNING,
    **BUBBLES,
}

SIZES: Final[dict[str, int]] = {
    "StudySpec": 1024 * n.KIB,
    "ParameterAssignment": 64 * n.KIB,
    "AddTrialsRequest": 1024 * n.KIB,
    "ReportTrialRequest": 128 * n.KIB,
    "Report": 128 * n.KIB,
    "ReportRequest": 64 * n.KIB,
}
