"""Workers with their slots, and the studies that share them; and what this console and its scheduler are."""

from dataclasses import asdict
from importlib.metadata import version

from starlette.requests import Request

from headrace.cli import views, wording
from headrace.client import AsyncClient
from headrace_services.console.rendering import Content


async def cluster(request: Request, client: AsyncClient) -> Content:  # noqa: ARG001 - every page takes the request
    """The workers with their loads of the last hour, and the studies that compete for slots."""
    workers, shares = await client.workers(history=True), await client.shares()
    return Content(
        template="cluster.html",
        title="Cluster",
        data={
            "workers": [views.worker(one) for one in workers],
            "shares": [asdict(one) for one in shares],
        },
        more={"workers": workers, "shares": shares, "kept_off": wording.kept_off, "unshown": workers.unshown},
    )


async def about(request: Request, client: AsyncClient) -> Content:  # noqa: ARG001 - every page takes the request
    """Versions, and who is asking."""
    server, who = await client.server_info(), await client.who_am_i()
    ours = version("headrace")
    return Content(
        template="about.html",
        title="About",
        data={
            "console": ours,
            "scheduler": asdict(server),
            "address": client.address,
            "project": who.project,
            "role": who.role.value,
        },
        more={"server": server, "who": who, "ours": ours, "address": client.address},
    )
