"""Ended studies are kept for their retention time, and what somebody still needs is kept as long as it is needed."""

from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from past_studies import count, past_study
from reopened_site import train
from sqlalchemy import text
from sqlalchemy.ext.asyncio import AsyncConnection, AsyncEngine
from study_site import StudySite, make_spec

from headrace.ages import KINDS, Ages, ages_of, parse, told
from headrace.errors import InvalidFieldError
from headrace_services.scheduler.core.inputs import ExtendStudy, RetryTrials
from headrace_services.scheduler.engine.janitor import Janitor
from headrace_services.scheduler.store import aging, leftovers, quotas
from headrace_services.scheduler.store.database import transaction

DAY = 86_400.0
SPEC = make_spec()
NEVER = Ages(**dict.fromkeys(KINDS))
OF_A_DAY = {kind: timedelta(days=1) for kind in KINDS}


def only(*kinds: str) -> Ages:
    """One day for these kinds; all others are kept forever."""
    return Ages(**{kind: OF_A_DAY[kind] if kind in kinds else None for kind in KINDS})


@pytest.mark.parametrize(
    ("written", "again"),
    [
        ("90d", "90d"),
        ("36h", "36h"),
        ("2w", "14d"),
        ("0", "0"),
        ("forever", "forever"),
        (" 1Y ", "365d"),
        ("90s", "90s"),
    ],
)
def test_an_age_is_read_and_told(written: str, again: str) -> None:
    assert told(parse(written)) == again
    assert parse(told(parse(written))) == parse(written)


@pytest.mark.parametrize(
    "given",
    [
        "event=9d",
        "events=",
        "events",
        "events=-1d",
        "events=9",
        "=3d",
        "events=9999999999d",
        "events=999999999y",
    ],
)
def test_what_is_no_age_is_refused_with_the_remedy(given: str) -> None:
    with pytest.raises(InvalidFieldError, match="--keep") as caught:
        ages_of([given])
    assert "KIND=AGE" in str(caught.value.violations[0].remedy)


def test_ages_that_are_not_given_have_their_defaults() -> None:
    assert ages_of(["events=1d"]) == Ages(events=timedelta(days=1))


async def rows_of(engine: AsyncEngine, study: int) -> dict[str, int]:
    async with engine.connect() as conn:
        return {
            t: await count(conn, t, study)
            for t in ("event", "report", "lease", "slot_grant", "trial", "study")
        }


WHOLE = {"event": 31, "report": 15, "lease": 3, "slot_grant": 3, "trial": 3, "study": 1}


@pytest.mark.parametrize(
    ("kind", "changes"),
    [
        ("events", {"event": 1}),
        ("reports", {"report": 6}),
        ("leases", {"lease": 0, "slot_grant": 0}),
        ("studies", dict.fromkeys(WHOLE, 0)),
        ("requests", {}),
    ],
)
async def test_each_kind_goes_at_its_age_and_no_sooner(
    engine: AsyncEngine, kind: str, changes: dict[str, int]
) -> None:
    async with transaction(engine) as conn:
        old = await past_study(conn, "old", SPEC, ago_s=1.1 * DAY)
        young = await past_study(conn, "young", SPEC, ago_s=0.9 * DAY)
    await Janitor(engine, only(kind), rest=0).clean()
    assert await rows_of(engine, old) == {**WHOLE, **changes}
    assert await rows_of(engine, young) == WHOLE
    async with engine.connect() as conn:
        assert set((await leftovers.due_now(conn, only(kind))).values()) == {0}


@pytest.mark.parametrize(
    "referring",
    [
        {"warm_start": {"study": "old"}, "sampler": {"kind": "tpe"}},
        {"after": "old"},
        {"sampler": {"kind": "best_of", "study": "old"}},
    ],
)
async def test_what_a_live_study_refers_to_has_no_age(engine: AsyncEngine, referring: dict[str, Any]) -> None:
    async with transaction(engine) as conn:
        old = await past_study(conn, "old", SPEC, ago_s=2 * DAY)
    live = await StudySite(engine, make_spec(**referring)).create()
    everything = Ages(**OF_A_DAY)
    janitor = Janitor(engine, everything, rest=0)
    await janitor.clean()
    assert await rows_of(engine, old) == WHOLE
    async with transaction(engine) as conn:
        await conn.execute(
            text("UPDATE study SET state = 'STOPPED', end_time = clock_timestamp() WHERE id = :id"),
            {"id": live.study_id},
        )
    await janitor.clean()
    assert set((await rows_of(engine, old)).values()) == {0}


async def test_a_study_of_another_project_refers_to_its_own(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        old = await past_study(conn, "old", SPEC, ago_s=2 * DAY)
    live = await StudySite(engine, make_spec(after="old")).create()
    async with transaction(engine) as conn:
        await quotas.make(conn, "other")
        await conn.execute(text("UPDATE study SET project = 'other' WHERE id = :id"), {"id": live.study_id})
    await Janitor(engine, Ages(**OF_A_DAY), rest=0).clean()
    assert set((await rows_of(engine, old)).values()) == {0}


async def ended_long_ago(engine: AsyncEngine, **changes: Any) -> StudySite:
    site = await StudySite(engine, make_spec(**changes)).create()
    await site.connect(slots=3)
    await train(site)
    await end_long_ago(site)
    return site


async def end_long_ago(site: StudySite) -> None:
    async with transaction(site.engine) as conn:
        await conn.execute(
            text("UPDATE study SET end_time = end_time - interval '1 day' WHERE id = :id"),
            {"id": site.study_id},
        )


async def test_the_best_checkpoint_stays_and_a_retried_trial_starts_again(engine: AsyncEngine) -> None:
    site = await ended_long_ago(engine)
    before = await site.trials()
    await Janitor(engine, only("checkpoints"), rest=0).clean()
    after = await site.trials()
    best = min(
        (row for row in after if row.score is not None), key=lambda row: (row.score, row.number)
    ).number
    assert [row.number for row in after if row.checkpoint] == [best]
    assert before[best].checkpoint == after[best].checkpoint
    await site.step(ExtendStudy(trials=2, steps=None))
    await train(site)
    assert (await site.study()).state == "COMPLETED"


async def test_a_study_that_continues_is_young_again(engine: AsyncEngine) -> None:
    site = await ended_long_ago(engine)
    ages = only("events", "reports", "leases", "checkpoints")
    await Janitor(engine, ages, rest=0).clean()
    await site.step(ExtendStudy(trials=0, steps=18))
    await train(site)
    kept = len(await site.events())
    assert kept > 1
    await Janitor(engine, ages, rest=0).clean()
    assert len(await site.events()) == kept
    await end_long_ago(site)
    await Janitor(engine, ages, rest=0).clean()
    assert {event.number for event in await site.events()} == {None}


async def test_a_study_that_continues_just_as_the_janitor_has_found_it_keeps_everything(
    engine: AsyncEngine, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with transaction(engine) as conn:
        study = await past_study(conn, "old", SPEC, ago_s=2 * DAY)
        kinds, ever = ("studies", *aging.OF_ROWS, "checkpoints"), datetime.fromtimestamp(0, UTC)
        found = {kind: await aging.due(conn, kind, OF_A_DAY[kind], 9, ever) for kind in kinds}
        assert [[one.id for one in of_a_kind] for of_a_kind in found.values()] == [[study]] * len(kinds)
        await conn.execute(text("UPDATE study SET state = 'ACTIVE', end_time = NULL"))

    async def due(_: AsyncConnection, kind: str, *__: object) -> list[aging.Due]:
        return found.pop(kind, [])

    monkeypatch.setattr(aging, "due", due)
    await Janitor(engine, only(*kinds), rest=0).clean()
    assert not found
    assert await rows_of(engine, study) == WHOLE
    async with engine.connect() as conn:
        kept = text("SELECT bool_and(checkpoint IS NOT NULL) FROM trial")
        assert (await conn.execute(kept)).scalar_one()


async def test_the_trials_that_the_end_cut_off_are_known_without_their_events(engine: AsyncEngine) -> None:
    site = await StudySite(engine, make_spec(policy={"kind": "run_all"}, max_retries=0)).create()
    await site.connect(slots=2)
    await train(site, fails={0})
    await end_long_ago(site)
    await Janitor(engine, only("events", "leases"), rest=0).clean()
    (found,) = await site.step(RetryTrials(numbers=None))
    assert found.numbers == (0,)  # type: ignore[union-attr]  # a Reopened


async def test_zero_is_at_once_and_forever_is_never(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        study = await past_study(conn, "old", SPEC, ago_s=9 * 365 * DAY)
    await Janitor(engine, NEVER, rest=0).clean()
    assert await rows_of(engine, study) == WHOLE
    await Janitor(engine, Ages(**{**dict.fromkeys(KINDS), "events": timedelta(0)}), rest=0).clean()
    assert (await rows_of(engine, study))["event"] == 1


async def test_a_study_that_cannot_be_read_keeps_no_other_one(engine: AsyncEngine) -> None:
    async with transaction(engine) as conn:
        broken = await past_study(conn, "broken", SPEC, ago_s=3 * DAY)
        await conn.execute(text("UPDATE study SET spec = '{}' WHERE id = :id"), {"id": broken})
        whole = await past_study(conn, "whole", SPEC, ago_s=2 * DAY)
    await Janitor(engine, only("checkpoints", "events"), rest=0).clean()
    assert (await rows_of(engine, broken))["event"] == 1
    async with engine.connect() as conn:
        kept = text("SELECT count(*) FROM trial WHERE study_id = :id AND checkpoint IS NOT NULL")
        assert [(await conn.execute(kept, {"id": one})).scalar_one() for one in (broken, whole)] == [3, 1]


async def test_of_a_study_with_several_objectives_the_front_stays(engine: AsyncEngine) -> None:
    spec = make_spec(
        objective={"metric": "a", "goal": "minimize"},
        further_objectives=[{"metric": "b", "goal": "minimize"}],
        policy={"kind": "run_all"},
    )
    async with transaction(engine) as conn:
        study = await past_study(conn, "old", spec, ago_s=2 * DAY, trials=4)
        front = "jsonb_build_object('a', number, 'b', CASE number WHEN 3 THEN 9 ELSE -number END)"
        await conn.execute(text(f"UPDATE trial SET metrics = {front} WHERE study_id = :id"), {"id": study})
    await Janitor(engine, only("checkpoints"), rest=0).clean()
    async with engine.connect() as conn:
        kept = text(
            "SELECT number FROM trial WHERE study_id = :id AND checkpoint IS NOT NULL ORDER BY number"
        )
        assert (await conn.execute(kept, {"id": study})).scalars().all() == [0, 1, 2]
