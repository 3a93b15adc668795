"""What servers count of the calls that they do not take."""

from prometheus_client import Counter

from headrace_services.monitoring.registry import REGISTRY

REFUSED = Counter(
    "headrace_callers_bounded",
    "Callers that wanted more than they may have, by what they wanted.",
    ("what",),
    registry=REGISTRY,
)
