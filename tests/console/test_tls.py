"""A console whose scheduler has certificates: both are the commands that people start."""

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from datetime import UTC, datetime
from pathlib import Path

import httpx2
import pytest
from closed_processes import closed_processes, end_command, start_command, until_said
from console_site import hidden
from sqlalchemy.ext.asyncio import AsyncEngine

from headrace_services.identity import authority

pytestmark = pytest.mark.full


@asynccontextmanager
async def console(folder: Path, name: str, *arguments: str) -> AsyncIterator[httpx2.AsyncClient]:
    """`headrace console` on a free port."""
    log = folder / f"{name}.log"
    process = start_command(log, {}, None, "console", "--listen", "127.0.0.1:0", *arguments)
    try:
        url = await until_said(log, r"(http://127\.0\.0\.1:[1-9]\d*)")
        async with httpx2.AsyncClient(base_url=url, timeout=60) as browser:
            yield browser
    finally:
        await end_command(process)


async def test_it_trusts_the_given_authority_alone(
    engine: AsyncEngine, database_url: str, tmp_path: Path
) -> None:
    authority.make(tmp_path / "other", ["localhost", "127.0.0.1"], now=datetime.now(UTC))
    async with closed_processes(engine, database_url, tmp_path) as site:
        (tmp_path / "right.pem").write_bytes(site.trusted)
        token = next(token for caller, token in site.tokens.items() if "editor" in str(caller))
        address = ("--address", f"tls://{site.addresses.users}")
        async with console(tmp_path, "right", *address, "--tls-ca", str(tmp_path / "right.pem")) as browser:
            assert (await browser.get("/studies.json")).status_code == 401
            assert (await browser.get("/")).headers["location"].startswith("/login")
            csrf = hidden((await browser.get("/login")).text, "csrf")
            answer = await browser.post("/login", data={"csrf": csrf, "token": token, "next": "/about"})
            assert answer.status_code == 303
            page = await browser.get("/about")
            assert page.status_code == 200
            assert token not in page.text
            assert site.addresses.users in page.text
        wrong = str(tmp_path / "other" / "ca.pem")
        headers = {"authorization": f"Bearer {token}"}
        for name, more in (("wrong", ("--tls-ca", wrong)), ("none", ())):
            async with console(tmp_path, name, *address, *more) as browser:
                answer = await browser.get("/studies.json", headers=headers)
                assert answer.status_code == 503, name
                assert token not in answer.text
