"""Credentials of a store, planted in everything that names it, and searched for in everything that is said about
it."""

import http.server
import threading
import traceback
from collections.abc import Iterator

import pytest

from headrace.checkpoints import StoreUnavailableError, store_from_url
from headrace.errors import InvalidFieldError
from headrace.hidden import without_credentials

PLANTED = {
    "AWS_ACCESS_KEY_ID": "planted-access-key",
    "AWS_SECRET_ACCESS_KEY": "planted-secret-key",
    "AWS_SESSION_TOKEN": "planted-session",
    "AWS_REGION": "us-east-1",
}
SAID = (
    "<Error><Code>ExpiredToken</Code><Message>The provided token has expired.</Message>"
    "<Token-0>planted-session</Token-0><AWSAccessKeyId>planted-access-key</AWSAccessKeyId></Error>"
)


class Service(http.server.BaseHTTPRequestHandler):
    """Refuses everything, and repeats what it was given, as Amazon's service does."""

    answer = b""

    def refuse(self) -> None:
        self.send_response(403)
        self.send_header("Content-Length", str(len(self.answer)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(self.answer)

    do_GET = do_PUT = do_HEAD = do_POST = do_DELETE = refuse  # noqa: N815

    def log_message(self, *_: object) -> None:
        pass


@pytest.fixture
def service(monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """HOST:PORT of such a service, and credentials for it."""
    for name, value in PLANTED.items():
        monkeypatch.setenv(name, value)
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Service) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"127.0.0.1:{server.server_port}"
        server.shutdown()
        thread.join()


def said(error: BaseException) -> str:
    """Everything that a log would show of an error."""
    return "".join(traceback.format_exception(error))


@pytest.mark.parametrize("answer", [f"<?xml version='1.0'?>\n{SAID}", SAID, '{"token": "planted-session"}'])
@pytest.mark.parametrize("user", ["", "planted-user:planted-password@"])
def test_what_a_store_repeats_is_not_repeated(
    service: str, monkeypatch: pytest.MonkeyPatch, answer: str, user: str
) -> None:
    monkeypatch.setattr(Service, "answer", answer.encode())
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{user}{service}")
    with pytest.raises(StoreUnavailableError) as refused:
        store_from_url("s3://bucket/prefix").list("studies/x/trials/0")
    assert "planted" not in said(refused.value)
    assert "403 Forbidden" in str(refused.value)
    assert ("ExpiredToken: The provided token has expired." in str(refused.value)) == ("<Code>" in answer)


@pytest.mark.parametrize(
    "url",
    [
        "s3://planted-access-key:planted-secret-key@bucket/p",
        "s3://planted-access-key:planted/secret/key@bucket/p",
        "s3://planted-access-key:planted-secret-key/p",
        "s3:/planted-access-key:planted-secret-key@bucket/p",
        "https://planted-user:planted-password@host/bucket",
    ],
)
def test_an_address_with_credentials_is_refused_and_not_shown(url: str) -> None:
    with pytest.raises(ValueError, match="BUCKET/PREFIX") as refused:
        store_from_url(url)
    assert "planted" not in said(refused.value)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("AWS_SECRET_ACCESS_KEY", "planted-secret-key\n"),
        ("AWS_SESSION_TOKEN", "planted-session\r\n"),
        ("AWS_ENDPOINT_URL", "http://planted-user:planted-password@["),
        ("AWS_ENDPOINT_URL_S3", "planted-host:9000"),
    ],
)
def test_a_variable_that_cannot_be_used_is_named(
    service: str, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    """The library panics on it, which no daemon would survive."""
    monkeypatch.setenv("AWS_ENDPOINT_URL", f"http://{service}")
    monkeypatch.setenv(name, value)
    with pytest.raises(InvalidFieldError, match=name) as refused:
        store_from_url("s3://bucket/prefix")
    assert "planted" not in said(refused.value)


@pytest.mark.parametrize(
    ("text", "shown"),
    [
        ("GET http://u:p@h/b?a=1 failed", "GET http://…@h/b?a=1 failed"),
        ("store 's3:/k:s@b' is none", "store 's3:/…@b' is none"),
        ("to file:///data/a, and b@c.org", "to file:///data/a, and b@c.org"),
        ("nothing", "nothing"),
    ],
)
def test_addresses_without_credentials(text: str, shown: str) -> None:
    assert without_credentials(text) == shown
