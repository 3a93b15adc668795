"""Tokens as text: which texts are tokens, what is stored of them, and how two are compared."""

import asyncio
import hashlib

import pytest

from headrace.errors import UnauthenticatedError
from headrace_services.identity import known, tokens
from headrace_services.identity.gate import Identity, token_in
from headrace_services.identity.keeping import AT_ONCE, KEPT_S, MOST
from headrace_services.identity.known import KnownTokens, StoredToken
from headrace_services.identity.roles import Role


def test_a_new_token_reads_as_itself_and_shows_no_secret() -> None:
    made, other = tokens.new_token(), tokens.new_token()
    assert tokens.read(made.text) == made
    assert made.text.startswith(f"hr_{made.id}_")
    assert len(made.text) == 63
    assert made.digest == hashlib.sha256(made.text.encode()).digest()
    assert made.text not in repr(made)
    assert made.shown == f"hr_{made.id}_…"
    assert {made.id, made.digest}.isdisjoint({other.id, other.digest})


@pytest.mark.parametrize(
    "text",
    ["", "hr_", "hr_0123456789abcdef_short", "xx_0123456789abcdef_" + "a" * 43, "hr_0123456789abcdef_" + "ä" * 43,
     "hr_0123456789ABCDEF_" + "a" * 43, "hr_0123456789abcdef_" + "a" * 44],
)  # fmt: skip
def test_what_is_no_token(text: str) -> None:
    assert tokens.read(text) is None
    with pytest.raises(UnauthenticatedError) as refused:
        token_in([("authorization", f"Bearer {text}")])
    assert "a" * 43 not in str(refused.value)


def test_the_header_of_a_call() -> None:
    made = tokens.new_token()
    for value in (f"Bearer {made.text}", f"bearer  {made.text} ", f"Bearer {made.text}".encode()):
        assert token_in([("x", "y"), ("authorization", value)]) == made
    for several in ([], [("authorization", made.text)], [("authorization", f"Basic {made.text}")],
                    [("authorization", f"Bearer {made.text}")] * 2):  # fmt: skip
        with pytest.raises(UnauthenticatedError) as refused:
            token_in(several)
        assert made.text[-43:] not in str(refused.value)


class Table:
    """A table in memory, which counts its reads."""

    def __init__(self, *rows: StoredToken) -> None:
        self.rows = {row.id: row for row in rows}
        self.asked: list[str] = []
        self.noted: list[str] = []

    async def find(self, token_id: str) -> StoredToken | None:
        self.asked.append(token_id)
        return self.rows.get(token_id)

    async def note_use(self, token_id: str) -> None:
        self.noted.append(token_id)


class Clock:
    """A clock set by hand."""

    def __init__(self) -> None:
        self.now = 100.0

    def __call__(self) -> float:
        return self.now


def stored(token: tokens.Token, **changes: object) -> StoredToken:
    fields = {
        "id": token.id,
        "digest": token.digest,
        "name": "ann",
        "project": "p",
        "role": Role.EDITOR,
        "revoked": False,
        "left_s": None,
        "note_use": False,
    }
    return StoredToken(**{**fields, **changes})  # type: ignore[arg-type]


async def test_a_token_is_looked_up_once_in_some_seconds_and_its_use_noted_once() -> None:
    token, clock = tokens.new_token(), Clock()
    table = Table(stored(token, note_use=True))
    found = KnownTokens(table, clock)
    for _ in range(3):
        assert await found.identify(token) == Identity(project="p", role=Role.EDITOR, token=token.id)
    assert (table.asked, table.noted) == ([token.id], [token.id])
    table.rows[token.id] = stored(token, revoked=True)
    clock.now += KEPT_S - 0.01
    await found.identify(token)
    clock.now += 0.02
    with pytest.raises(UnauthenticatedError, match="was revoked"):
        await found.identify(token)
    assert table.noted == [token.id]


async def test_a_token_that_is_not_there_is_looked_up_once_too() -> None:
    token, clock = tokens.new_token(), Clock()
    table = Table()
    found = KnownTokens(table, clock)
    for _ in range(3):
        with pytest.raises(UnauthenticatedError, match="is not known here"):
            await found.identify(token)
    assert table.asked == [token.id]


async def test_a_wrong_secret_is_reported_like_an_unknown_token_and_costs_no_query() -> None:
    token, clock = tokens.new_token(), Clock()
    table = Table(stored(token, revoked=True))
    found = KnownTokens(table, clock)
    guess = tokens.read(f"hr_{token.id}_{'A' * 43}")
    assert guess is not None
    for _ in range(2):
        with pytest.raises(UnauthenticatedError, match="is not known here"):
            await found.identify(guess)
    assert (table.asked, table.noted) == ([token.id], [])


async def test_a_token_expires_while_it_is_kept() -> None:
    token, clock = tokens.new_token(), Clock()
    found = KnownTokens(Table(stored(token, left_s=2.0)), clock)
    await found.identify(token)
    clock.now += 2.0
    with pytest.raises(UnauthenticatedError, match=r"\('ann'\) has expired"):
        await found.identify(token)


async def test_ids_that_somebody_tries_fill_no_memory() -> None:
    table = Table()
    found = KnownTokens(table, Clock())
    for number in range(MOST + 10):
        token = tokens.read(f"hr_{number:016x}_{'A' * 43}")
        assert token is not None
        with pytest.raises(UnauthenticatedError):
            await found.identify(token)
    assert len(found._kept) == MOST


async def test_a_known_token_waits_for_no_guesses_and_is_pushed_out_by_none() -> None:
    token, clock = tokens.new_token(), Clock()
    table = Table(stored(token))
    found, find, over = KnownTokens(table, clock), table.find, asyncio.Event()
    await found.identify(token)

    async def slow_for_guesses(token_id: str) -> StoredToken | None:
        if token_id != token.id:
            await over.wait()
        return await find(token_id)

    table.find = slow_for_guesses  # type: ignore[method-assign]
    guesses = [asyncio.create_task(found.identify(tokens.new_token())) for _ in range(20)]
    await asyncio.sleep(0)
    clock.now += KEPT_S
    async with asyncio.timeout(60):
        await found.identify(token)
    over.set()
    await asyncio.gather(*guesses, return_exceptions=True)
    asked = table.asked.count(token.id)
    for _ in range(MOST):
        with pytest.raises(UnauthenticatedError):
            await found.identify(tokens.new_token())
    await found.identify(token)
    assert (asked, table.asked.count(token.id)) == (2, 2)


async def test_calls_at_once_look_a_token_up_once_and_guesses_take_few_connections() -> None:
    token = tokens.new_token()
    table = Table(stored(token))
    busy, most, find = 0, 0, table.find

    async def slow(token_id: str) -> StoredToken | None:
        nonlocal busy, most
        busy += 1
        most = max(most, busy)
        await asyncio.sleep(0)
        busy -= 1
        return await find(token_id)

    table.find = slow  # type: ignore[method-assign]
    found = KnownTokens(table, Clock())
    guesses = [found.identify(tokens.new_token()) for _ in range(50)]
    told = await asyncio.gather(*(found.identify(token) for _ in range(50)), *guesses, return_exceptions=True)
    assert [isinstance(one, Identity) for one in told] == [True] * 50 + [False] * 50
    assert most == AT_ONCE
    assert table.asked.count(token.id) <= AT_ONCE


async def test_every_token_takes_the_one_comparison_of_constant_time(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    compared: list[tuple[int, int]] = []
    real = tokens.hmac.compare_digest

    def counted(one: bytes, other: bytes) -> bool:
        compared.append((len(one), len(other)))
        return real(one, other)

    monkeypatch.setattr(tokens.hmac, "compare_digest", counted)
    good = tokens.new_token()
    wrong = tokens.read(f"hr_{good.id}_{'A' * 43}")
    assert wrong is not None
    found = KnownTokens(Table(stored(good)), Clock())
    assert known.is_same is tokens.is_same
    await found.identify(good)
    for bad in (wrong, tokens.new_token()):
        with pytest.raises(UnauthenticatedError):
            await found.identify(bad)
    assert compared == [(32, 32)] * 3
