"""What is refused before any page is asked, and the headers of every kind of answer."""

import asyncio

import pytest
from console_site import Console, make_study

from headrace.target import Target
from headrace_services.console import app
from headrace_services.console.guard import HEADERS, MOST_BODY
from headrace_services.console.settings import Settings

NAVIGATES = {"sec-fetch-site": "cross-site", "sec-fetch-mode": "navigate"}

REFUSED = {
    "another host": ("GET", {"host": "evil.example"}),
    "another host, with our port": ("GET", {"host": "evil.example:7450"}),
    "a host that ends like ours": ("GET", {"host": "evil127.0.0.1"}),
    "no host": ("GET", {"host": ""}),
    "another origin": ("GET", {"origin": "http://evil.example"}),
    "another port": ("POST", {"origin": "http://127.0.0.1:1"}),
    "no origin at all": ("POST", {"origin": "null"}),
    "a script of another site": ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "cors"}),
    "an image of another site": ("GET", {"sec-fetch-site": "cross-site", "sec-fetch-mode": "no-cors"}),
    "a script of another port": ("GET", {"sec-fetch-site": "same-site", "sec-fetch-mode": "cors"}),
    "a form of another site": ("POST", NAVIGATES),
    "a form of another port": ("POST", {**NAVIGATES, "sec-fetch-site": "same-site"}),
}
ANSWERED = {
    "a program": {},
    "the address bar": {"sec-fetch-site": "none", "sec-fetch-mode": "navigate"},
    "a page of ours": {"sec-fetch-site": "same-origin", "sec-fetch-mode": "cors"},
    "a link elsewhere": NAVIGATES,
    "localhost": {"host": "LocalHost:80"},
    "IPv6": {"host": "[::1]:80"},
}


@pytest.mark.parametrize("path", ["/", "/login", "/studies/s/live", "/static/page.js"])
@pytest.mark.parametrize("case", ["another host", "a script of another site", "a script of another port"])
async def test_every_path_is_guarded(console: Console, path: str, case: str) -> None:
    method, headers = REFUSED[case]
    answer = await console.http.request(method, path, headers=headers)
    assert answer.status_code == 403
    assert_headers(answer.headers)


async def test_requests_of_other_sites_are_refused(console: Console) -> None:
    for case, (method, headers) in REFUSED.items():
        for path in ("/", "/logout" if method == "POST" else "/about"):
            answer = await console.http.request(method, path, headers=headers)
            assert answer.status_code in ({400, 403} if case == "no host" else {403}), case
    for case, headers in ANSWERED.items():
        answer = await console.http.get("/", headers=headers)
        assert answer.status_code == 200, case
    own = console.url.removeprefix("http://")
    assert (await console.http.get("/", headers={"host": own, "origin": console.url})).status_code == 200


def assert_headers(headers: object) -> None:
    assert {name: headers[name] for name in HEADERS} == HEADERS  # type: ignore[index]
    policy = HEADERS["content-security-policy"]
    assert "unsafe" not in policy
    assert "default-src 'none'" in policy
    assert "server" not in headers  # type: ignore[operator]


async def test_every_kind_of_answer_has_the_headers(
    console: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    await make_study(console.scheduler)
    for path, status in {
        "/": 200,
        "/studies.json": 200,
        "/studies/s": 200,
        "/studies/s/curves.bin": 200,
        "/static/page.js": 200,
        "/static/none.js": 404,
        "/static/../app.py": 404,
        "/static/%2e%2e/app.py": 404,
        "/none": 404,
        "/none.json": 404,
        "/studies/none": 404,
        "/studies/none.json": 404,
        "/studies/none/live": 404,
        "/studies/none/curves.bin": 404,
        "/studies/s/numbers.json": 200,
        "/studies/none/numbers.json": 404,
        "/studies?q=%22": 400,
        "/logout": 405,
    }.items():
        answer = await console.http.get(path)
        assert answer.status_code == status, path
        assert_headers(answer.headers)
        kept = "no-cache" if path.startswith("/static/") else "no-store"
        if "app.py" not in path:
            assert answer.headers["cache-control"] == kept, path
    async with console.http.stream("GET", "/studies/s/live") as stream:
        assert stream.headers["content-type"].startswith("text/event-stream")
        assert "content-encoding" not in stream.headers
        assert_headers(stream.headers)


async def test_a_failure_has_the_headers_and_shows_no_details(console: Console) -> None:
    def fails(*_: object) -> None:
        raise RuntimeError("a secret")

    console.state.sessions.using = fails
    for path in ("/", "/studies.json", "/studies/s/curves.bin", "/studies/s/live"):
        answer = await console.http.get(path)
        assert answer.status_code == 500
        assert "secret" not in answer.text
        assert_headers(answer.headers)
    assert (await console.http.get("/studies.json")).json()["error"] == "The console failed on this page."


async def test_large_bodies_are_refused_with_a_length_and_without(console: Console) -> None:
    body = b"token=" + b"a" * MOST_BODY

    async def chunks() -> object:
        for at in range(0, len(body), 1000):
            yield body[at : at + 1000]

    for content in (body, chunks()):
        answer = await console.http.post(
            "/login", content=content, headers={"content-type": "application/x-www-form-urlencoded"}
        )
        assert answer.status_code == 413
        assert_headers(answer.headers)
    reader, writer = await asyncio.open_connection("127.0.0.1", int(console.url.rpartition(":")[2]))
    writer.write(b"POST /login HTTP/1.1\r\nhost: localhost\r\ncontent-length: " + b"9" * 5000 + b"\r\n\r\n")
    assert (await reader.read(12))[9:12] in (b"400", b"413")
    writer.close()
    await writer.wait_closed()


def test_the_hosts_that_are_answered() -> None:
    def allowed(**fields: object) -> set[str]:
        return set(Settings(target=Target(replicas=("a:1",)), **fields).allowed)  # type: ignore[arg-type]

    assert allowed() == {"127.0.0.1", "localhost", "[::1]"}
    assert allowed(host="2001:db8::1") == {"[2001:db8::1]"}
    assert allowed(host="0.0.0.0", hosts=("Tune.Example",)) == {"0.0.0.0", "tune.example"}


def test_each_page_has_a_twin_in_json() -> None:
    built = app.build(Settings(target=Target(replicas=("127.0.0.1:1",))))
    paths = {route.path for route in built.app.routes}  # type: ignore[attr-defined]
    for path in app.PAGES:
        assert f"{path}.json" in paths or path == "/"
