"""Who sees what: tokens, sessions, the form, cookies, and how many tokens there may be at once."""

import asyncio
import secrets
from urllib.parse import urlsplit

import pytest
from console_site import Console, Scheduler, hidden, make_study, serving, until

from headrace.errors import InvalidFieldError
from headrace_services.console import server, sessions
from headrace_services.console.access import _own_path
from headrace_services.identity.roles import Role
from headrace_services.identity.tokens import new_token

PATHS = ("/", "/studies.json", "/studies/s", "/studies/s.json", "/studies/s/live", "/studies/s/curves.bin")


def bearer(token: str) -> dict[str, str]:
    return {"authorization": f"Bearer {token}"}


@pytest.mark.parametrize("how", ["none", "wrong", "expired", "revoked", "not a token", "not ASCII"])
async def test_without_a_good_token_nothing_is_shown(closed: Console, how: str) -> None:
    await make_study(closed.scheduler, token=await closed.scheduler.token())
    bad = {"none": "", "not a token": "x", "not ASCII": "h\u00e4"}.get(how)
    token = bad if bad is not None else await closed.scheduler.ended_token(how)
    headers = {b"authorization": b"Bearer " + token.encode("latin-1")} if how != "none" else {}
    for path in PATHS:
        answer = await closed.http.get(path, headers=headers)
        page = how == "none" and path in {"/", "/studies/s"}
        expected = 303 if page else 401
        assert answer.status_code == expected, path
        if expected == 401:
            assert answer.headers["www-authenticate"] == "Bearer"
        if path.endswith(".json"):
            assert set(answer.json()) == {"error", "remedy"}
        assert "Learning curves" not in answer.text
    if how == "none":
        return
    browser = await closed.browser()
    answer = await closed.login(browser, token)
    assert answer.status_code == 401
    assert "headrace_session" not in browser.cookies
    await until(lambda: token not in closed.state.sessions._connections, "its connection is closed")


async def test_a_token_sees_its_own_project(closed: Console) -> None:
    ours, theirs = await closed.scheduler.token(project="a"), await closed.scheduler.token(project="b")
    for token, name in ((ours, "mine"), (theirs, "other")):
        await make_study(closed.scheduler, name, token)
        found = await closed.http.get("/studies.json", headers=bearer(token))
        assert [one["name"] for one in found.json()["studies"]] == [name]
    for path in ("/studies/other", "/studies/other.json", "/studies/other/live", "/compare?study=other"):
        assert (await closed.http.get(path, headers=bearer(ours))).status_code == 404, path
    browser = await closed.browser()
    assert (await closed.login(browser, ours)).status_code == 303
    page = (await browser.get("/")).text
    assert "mine" in page
    assert "other" not in page
    viewer = await closed.scheduler.token(Role.VIEWER, "a")
    assert (await closed.http.get("/studies/mine.json", headers=bearer(viewer))).status_code == 200


async def test_the_header_takes_precedence_over_the_cookie(closed: Console) -> None:
    ours, theirs = await closed.scheduler.token(project="a"), await closed.scheduler.token(project="b")
    await make_study(closed.scheduler, "other", theirs)
    browser = await closed.browser()
    await closed.login(browser, ours)
    assert (await browser.get("/studies/other.json")).status_code == 404
    assert (await browser.get("/studies/other.json", headers=bearer(theirs))).status_code == 200


@pytest.mark.parametrize("root", ["", "/headrace"])
@pytest.mark.parametrize("https", [False, True])
async def test_login_cookies_and_logout(closed_scheduler: Scheduler, root: str, https: bool) -> None:
    token = await closed_scheduler.token()
    async with serving(closed_scheduler, root_path=root, https=https) as console:
        page = await console.http.get("/login")
        csrf, before = hidden(page.text, "csrf"), page.headers["set-cookie"]
        form = {"csrf": csrf, "token": token, "next": "/studies?q=a%20b"}
        cookies = {"cookie": f"headrace_login={csrf}"}
        answer = await console.http.post("/login", data=form, headers=cookies)
        assert answer.status_code == 303
        assert answer.headers["location"] == f"{root}/studies?q=a%20b"
        for cookie in (before, answer.headers["set-cookie"]):
            flags = {part.strip().lower() for part in cookie.split(";")[1:]}
            assert {"httponly", "samesite=strict", f"path={root or '/'}"} <= flags
            assert ("secure" in flags) is https
            assert any(flag.startswith("max-age=") for flag in flags)
        cookie = {"cookie": answer.headers["set-cookie"].split(";")[0]}
        page = await console.http.get("/", headers=cookie)
        assert page.status_code == 200
        assert token not in page.text
        csrf = hidden(page.text, "csrf")
        for wrong in ("", "x", "\u00e4\u00e9", csrf[:-1]):
            await console.http.post("/logout", data={"csrf": wrong}, headers=cookie)
            assert (await console.http.get("/", headers=cookie)).status_code == 200
        answer = await console.http.post("/logout", data={"csrf": csrf}, headers=cookie)
        assert f"path={root or '/'}" in answer.headers["set-cookie"].lower()
        assert (await console.http.get("/", headers=cookie)).status_code == 303


async def test_a_login_needs_the_forms_own_token(closed: Console) -> None:
    token = await closed.scheduler.token()
    csrf = hidden((await closed.http.get("/login")).text, "csrf")
    for sent, cookie in ((csrf, ""), ("", csrf), ("x", csrf), ("\u00e4", csrf), (csrf[:-1], csrf), ("", "")):
        answer = await closed.http.post(
            "/login", data={"csrf": sent, "token": token}, headers={"cookie": f"headrace_login={cookie}"}
        )
        assert answer.status_code == 400, (sent, cookie)
        assert "headrace_session" not in answer.headers["set-cookie"]
    elsewhere = {"origin": "http://evil.example", "cookie": f"headrace_login={csrf}"}
    form = {"csrf": csrf, "token": token}
    assert (await closed.http.post("/login", data=form, headers=elsewhere)).status_code == 403


async def test_a_login_makes_a_new_session_and_ends_the_old_one(closed: Console) -> None:
    browser = await closed.browser(cookies={"headrace_session": "chosen-by-somebody"})
    await closed.login(browser, await closed.scheduler.token())
    made = [one.value for one in browser.cookies.jar if one.name == "headrace_session"]
    first = next(value for value in made if value != "chosen-by-somebody")
    assert [*closed.state.sessions._sessions] == [first]
    csrf = hidden((await browser.get("/login")).text, "csrf")
    answer = await closed.http.post(
        "/login",
        data={"csrf": csrf, "token": await closed.scheduler.token(Role.VIEWER)},
        headers={"cookie": f"headrace_login={csrf}; headrace_session={first}"},
    )
    assert answer.status_code == 303
    assert first not in closed.state.sessions._sessions
    assert len(closed.state.sessions._sessions) == 1


def test_only_paths_of_the_console_are_gone_to() -> None:
    for path in ("/", "/studies/s?q=lr%3E1&sort=-score", "/studies/s/trials/1"):
        assert _own_path(path) == path
    for path in (
        "",
        "//evil",
        "https://evil",
        "/\\evil",
        "\\\\evil",
        "/\t/evil",
        "/\n/evil",
        "evil",
        "javascript:x",
    ):
        assert _own_path(path) == "/"


async def test_after_the_login_the_page_that_was_asked_for_is_shown(closed: Console) -> None:
    asked = "/studies/s?q=lr>1e-3&sort=-score"
    answer = await closed.http.get(asked)
    assert urlsplit(answer.headers["location"]).path == "/login"
    browser = await closed.browser()
    page = await browser.get(answer.headers["location"])
    then = hidden(page.text, "next").replace("&amp;", "&")
    form = {"csrf": hidden(page.text, "csrf"), "next": then, "token": "wrong"}
    page = await browser.post("/login", data=form)  # a mistake does not lose it
    assert page.status_code == 401
    assert hidden(page.text, "next").replace("&amp;", "&") == then
    form |= {"csrf": hidden(page.text, "csrf"), "token": await closed.scheduler.token()}
    assert (await browser.post("/login", data=form)).headers[
        "location"
    ] == "/studies/s?q=lr%3E1e-3&sort=-score"


async def test_there_are_as_many_sessions_as_allowed(closed: Console) -> None:
    found = closed.state.sessions
    own = await closed.scheduler.token()
    for place in range(sessions.MOST_SESSIONS):
        found.open(f"token-{place}", "")
    browser = await closed.browser()
    answer = await closed.login(browser, own)
    assert answer.status_code == 503
    assert "Too many people" in answer.text
    found.end(next(iter(found._sessions)))
    assert (await closed.login(browser, own)).status_code == 303
    again = await closed.browser()
    assert (await closed.login(again, own)).status_code == 303  # ends their own oldest session
    assert len(found._sessions) == sessions.MOST_SESSIONS
    assert (await browser.get("/")).status_code == 303


async def test_sessions_end_by_themselves(closed: Console) -> None:
    found = closed.state.sessions
    browser = await closed.browser()
    await closed.login(browser, await closed.scheduler.token())
    assert (await browser.get("/")).status_code == 200
    clock, found._clock = found._clock, lambda: clock() + sessions.LONGEST_S + 1
    assert (await browser.get("/")).status_code == 303


async def test_idle_connections_are_closed_unless_a_page_follows(closed: Console) -> None:
    found, token = closed.state.sessions, await closed.scheduler.token()
    assert (await closed.http.get("/studies.json", headers=bearer(token))).status_code == 200
    client = found._connections[token].client
    clock = found._clock
    for later, used, kept in ((599, False, True), (1300, True, True), (2000, False, False)):
        found._clock = lambda later=later: clock() + later
        await found.close_idle(lambda _, used=used: used)
        assert (token in found._connections) is kept
    with pytest.raises(Exception, match="clos"):
        await client.who_am_i()
    found._clock = clock
    assert (await closed.http.get("/studies.json", headers=bearer(token))).status_code == 200


async def test_wrong_tokens_use_few_connections(closed: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sessions, "MOST_STRANGERS", 4)
    found, most = closed.state.sessions, 0
    token = await closed.scheduler.token()
    browser = await closed.browser()
    await closed.login(browser, token)

    async def ask() -> int:
        nonlocal most
        answer = await closed.http.get("/studies.json", headers=bearer(new_token().text))
        most = max(most, len(found._connections))
        return answer.status_code

    answers = await asyncio.gather(*(ask() for _ in range(40)))
    assert set(answers) <= {401, 503}
    assert most <= 5  # with that of the session
    assert [*found._connections] == [token]
    # With the scheduler away nothing is refused, and connections stay until they are replaced.
    await closed.scheduler.stop()
    monkeypatch.setattr(sessions, "MOST_STRANGERS", 2)
    for _ in range(3):
        found_with = found.using(secrets.token_hex(8))
        with found_with:
            pass
    assert len(found._connections) == 3


async def test_who_is_logged_in_is_served_while_strangers_are_not(
    closed: Console, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sessions, "MOST_STRANGERS", 1)
    browser = await closed.browser()
    await closed.login(browser, await closed.scheduler.token())
    with closed.state.sessions.using("a stranger"):
        for path in ("/studies.json", "/studies/s/curves.bin", "/studies/s/live"):
            answer = await closed.http.get(path, headers=bearer("another"))
            assert answer.status_code == 503
        assert (await browser.get("/")).status_code == 200


async def test_a_revoked_token_ends_its_session(closed_scheduler: Scheduler) -> None:
    token = await closed_scheduler.token()
    async with serving(closed_scheduler) as console:
        browser = await console.browser()
        await console.login(browser, token)
        async with closed_scheduler.sdk(await closed_scheduler.token(Role.ADMIN)) as admin:
            await admin.revoke_token(token.split("_")[1])
        await closed_scheduler.stop()  # forgets the tokens that it knows
        await closed_scheduler.start()
        assert (await browser.get("/")).status_code == 303
        assert not console.state.sessions._sessions
        assert token not in console.state.sessions._connections


async def test_other_machines_need_a_scheduler_with_tokens(open_scheduler: Scheduler) -> None:
    """Also one that began to serve everybody after the console had started."""
    with pytest.raises(InvalidFieldError, match="asks for no token"):
        await server._require_tokens(_settings(open_scheduler))
    async with serving(open_scheduler, host="0.0.0.0", hosts=("127.0.0.1",)) as console:
        assert (await console.http.get("/studies.json")).status_code == 401
        for token in ("anything", new_token().text):
            for path in ("/studies.json", "/studies/s/live"):
                answer = await console.http.get(path, headers=bearer(token))
                assert answer.status_code == 401
        browser = await console.browser()
        assert (await console.login(browser, new_token().text)).status_code == 403


def _settings(scheduler: Scheduler) -> server.Settings:
    return server.Settings(target=server.Target(replicas=(scheduler.address,)), host="0.0.0.0")


async def test_a_scheduler_with_tokens_may_be_served_to_others(closed_scheduler: Scheduler) -> None:
    await server._require_tokens(_settings(closed_scheduler))
