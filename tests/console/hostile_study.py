"""A study in which every text that users or their code write is hostile."""

from console_site import Console
from hostile import ALL, LONG, MARKUP, METRICS, PARAMS, VALUES
from rpc_site import make_spec
from sqlalchemy import insert, update

from headrace_services.scheduler.store import tables
from headrace_services.scheduler.store.database import transaction

TRIALS = 5


async def fill(console: Console, name: str = "s") -> None:
    """Create the study, with trials, reports, events and a worker. What the API would shorten is written directly."""
    space = {
        "opt": {"type": "categorical", "values": [*VALUES]},
        **{one: {"type": "float", "low": 0.0, "high": 1.0} for one in PARAMS},
    }
    spec = make_spec(space=space, max_trials=TRIALS, policy={"kind": "run_all"})
    async with console.scheduler.sdk() as client:
        study = await client.create_study(name, spec)
        await study.annotate(add_tags=["t" * 64, "a:b/c"], note=MARKUP + "W" * 500)
        for place in range(TRIALS - 1):
            trial = await study.ask(client_id=f"c{place}")
            assert trial is not None
            for step in (1, 2):
                values = {one: float("nan") if place == 1 else 0.1 * step for one in METRICS}
                await trial.report(step, {"loss": 0.5 + place, **values})
    async with transaction(console.scheduler.engine) as conn:
        await conn.execute(update(tables.trial).values(detail=ALL, log_tail=ALL, note=ALL))
        await conn.execute(update(tables.study).values(detail=ALL, note=ALL))
        await conn.execute(update(tables.event).values(message=ALL))
        row = {
            "name": "w1",
            "incarnation": "i",
            "labels": {"zone": ALL, "x" * 128: MARKUP},
            **dict.fromkeys(
                ("version", "trouble", "rejected", "reused", "mps", "host", "hold_why"), MARKUP + LONG
            ),
        }
        await conn.execute(insert(tables.worker).values(row))
