"""Input that makes no sense, logs that are not there or endless, and a proxy that serves it under a path."""

from urllib.parse import quote

import pytest
from console_site import Console, Scheduler, make_study, serving

from headrace.client.upkeep import LogPart


async def test_a_wrong_filter_is_kept_beside_its_message(console: Console) -> None:
    await make_study(console.scheduler)
    for base in ("/studies", "/studies/s"):
        for wrong in ("lr>", "nothing:1 x", '"', "state:none", "x" * 5000, "\u202e<b>"):
            answer = await console.http.get(base, params={"q": wrong})
            assert answer.status_code == 400, (base, wrong[:20])
            assert 'aria-invalid="true" aria-describedby="wrong"' in answer.text
            assert 'class="wrong"' in answer.text.split('id="wrong"')[1][:200]
            twin = await console.http.get(f"{base}.json", params={"q": wrong})
            assert twin.status_code == 400
            assert twin.json()["filter"] == wrong
            assert twin.json()["error"]
            assert isinstance(twin.json()["studies" if base == "/studies" else "trials"], list)


async def test_other_wrong_parameters(console: Console) -> None:
    await make_study(console.scheduler)
    for query in (
        "sort=none",
        "sort=--score",
        "page=wrong",
        "page=" + quote("\u0000<b>"),
        "sort=" + "x" * 3000,
    ):
        answer = await console.http.get(f"/studies/s?{query}")
        assert answer.status_code == 400, query[:30]
        assert (await console.http.get(f"/studies/s.json?{query}")).json()["error"]
    for numbers in ("x", "1," * 5000, "-1", "1 state:running", "9" * 400):
        answer = await console.http.get("/studies/s/curves.bin", params={"numbers": numbers})
        assert answer.status_code in {200, 400}, numbers[:20]
        if answer.status_code == 400:
            assert answer.headers["content-type"].startswith("text/plain")
    for path in ("/studies/s/trials/99", "/studies/s/trials/99999999999999999999", "/studies/s/trials/x"):
        for twin in ("", ".json"):
            assert (await console.http.get(path + twin)).status_code in {400, 404}, path
    names = "&".join(f"study=s{place}" for place in range(100))
    assert (await console.http.get(f"/compare?{names}")).status_code == 404
    assert (await console.http.get("/compare")).status_code == 200


async def test_the_log_of_a_trial_that_has_none(console: Console) -> None:
    await make_study(console.scheduler)
    assert (await console.http.get("/studies/s/trials/0/log")).status_code == 200
    answer = await console.http.get("/studies/s/trials/0/log.txt")
    assert answer.headers["content-type"].startswith("text/plain")
    assert answer.status_code < 500
    assert (await console.http.get("/studies/s/trials/77/log.txt")).status_code == 404
    wrong = await console.http.get("/studies/s/trials/0/log.txt", params={"after": "no cursor"})
    assert wrong.status_code in {200, 400}


async def test_an_endless_log_is_read_in_parts(console: Console, monkeypatch: pytest.MonkeyPatch) -> None:
    await make_study(console.scheduler)

    async def part(_: object, cursor: str = "") -> LogPart:
        return LogPart(data=b"x" * 65536, cursor=str(int(cursor or 0) + 65536), complete=False, notes=())

    monkeypatch.setattr("headrace.client.aio.AsyncTrial.read_log", part)
    after = ""
    for _ in range(5):
        answer = await console.http.get("/studies/s/trials/0/log.txt", params={"after": after})
        assert len(answer.content) == 65536
        after = answer.headers["x-next"]
    assert after == str(5 * 65536)
    assert len((await console.http.get("/studies/s/trials/0/log")).content) < 10_000


@pytest.mark.parametrize("strips", [True, False])
async def test_under_a_path(open_scheduler: Scheduler, closed_scheduler: Scheduler, strips: bool) -> None:
    """For a proxy that removes the path, and for one that passes it on."""
    before = "" if strips else "/tune"
    await make_study(open_scheduler)
    async with serving(open_scheduler, root_path="/tune") as console:
        for path in (
            "/",
            "/studies/s",
            "/static/page.js",
            "/studies/s.json",
            "/studies/none",
            "/static/none.js",
        ):
            answer = await console.http.get(before + path)
            assert answer.status_code == (404 if "none" in path else 200), path
            if answer.headers["content-type"].startswith("text/html"):
                for name in ("href", "src", "action"):
                    for found in answer.text.split(f' {name}="')[1:]:
                        assert found.startswith(("/tune/", "?", "#")), found[:80]
                assert 'data-root="/tune"' in answer.text
    async with serving(closed_scheduler, root_path="/tune", host="0.0.0.0", hosts=("127.0.0.1",)) as console:
        answer = await console.http.get(before + "/studies/s?q=x")
        assert answer.headers["location"] == "/tune/login?next=%2Fstudies%2Fs%3Fq%3Dx"
