"""Bounds of the calls about tokens (identity.proto)."""

from typing import Final

from headrace.bounds.calls import PAGE_SIZE, PAGE_TOKEN
from headrace.bounds.kinds import Bound, Span, Text
from headrace.bounds.specs import NAME

IDENTITIES: Final[dict[str, dict[str, Bound]]] = {
    "CreateTokenRequest": {
        "display_name": Text(100, remedy="Shorten it."),
        "project": NAME,
        "lifetime": Span(1, 10 * 366 * 86_400),
    },
    "ListTokensRequest": {"page_size": PAGE_SIZE, "page_token": PAGE_TOKEN, "project": NAME},
    "RevokeTokenRequest": {"name": Text(128, remedy="Write it as tokens/TOKEN.")},
}
