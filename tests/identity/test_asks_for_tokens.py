"""Which servers require tokens by default."""

import pytest

from headrace_services.identity.listening import asks_for_tokens
from headrace_services.identity.roles import Auth


@pytest.mark.parametrize(
    ("listen", "tls", "asks"),
    [
        ("127.0.0.1:7440", False, False),
        ("localhost:7440", False, False),
        ("[::1]:7440", True, False),
        ("0.0.0.0:7440", True, True),
        ("10.0.0.7:7440", True, True),
        ("head.example.org:7440", True, True),
        ("0.0.0.0:7440", False, False),  # --insecure: a trusted network, where a token could be read
    ],
)
def test_where_other_machines_call_over_tls(listen: str, tls: bool, asks: bool) -> None:
    assert asks_for_tokens(None, listen, tls=tls) is asks
    assert asks_for_tokens(Auth.TOKENS, listen, tls=tls)
    assert not asks_for_tokens(Auth.NONE, listen, tls=tls)
