"""A token is sent with every call, and never in plain text to another machine."""

from pathlib import Path

import pytest

from headrace import AsyncClient, Client, InvalidFieldError
from headrace.target import Target


@pytest.mark.parametrize("kind", [Client, AsyncClient])
def test_no_token_in_plain_text_to_another_machine(kind: type[Client] | type[AsyncClient]) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        kind("scheduler.example:7440", token="secret-word")
    (violation,) = caught.value.violations
    assert violation.field == "token"
    assert violation.remedy == "Use TLS: tls://scheduler.example:7440."
    assert "secret-word" not in str(caught.value)


def test_the_token_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("HEADRACE_TOKEN", "secret-word")
    with Client("127.0.0.1:1") as client:
        assert client.transport.target.metadata == (("authorization", "Bearer secret-word"),)
        assert "secret-word" not in repr(client.transport.target)


def test_a_token_that_no_header_may_have() -> None:
    assert Target.of("127.0.0.1:1", token=" secret-word\n").token == "secret-word"
    for token in ("secret\nword", "sécret"):
        with pytest.raises(InvalidFieldError) as caught:
            Target.of("127.0.0.1:1", token=token)
        assert caught.value.violations[0].field == "token"
        assert token not in str(caught.value)


def test_a_token_goes_over_a_socket_of_this_machine() -> None:
    assert Target.of("unix:/run/headrace.sock", token="secret-word").token == "secret-word"


def test_tls_stays_when_the_home_names_another_address(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HEADRACE_HOME", str(tmp_path))
    monkeypatch.delenv("HEADRACE_ADDRESS", raising=False)
    (tmp_path / "address").write_text("127.0.0.1:11\n")
    target = Target.of(None, tls_ca=Path("ca.pem"), token="secret-word")
    (tmp_path / "address").write_text("127.0.0.1:12\n")
    now = target.again()
    assert (now.replicas, now.tls, now.token) == (("127.0.0.1:12",), True, "secret-word")


def test_the_token_stays_when_the_home_names_another_address() -> None:
    target = Target.of("tls://scheduler.example:7440", token="secret-word")
    assert target.again().token == "secret-word"
    assert Target.of("127.0.0.1:7440").metadata == ()
