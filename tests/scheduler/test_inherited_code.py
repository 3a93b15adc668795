"""The mark of other code travels with the state that it trained, and spares a result from before it."""

from typing import Any

import pytest
from sqlalchemy.ext.asyncio import AsyncEngine
from study_site import gone, make_spec
from test_code_changes import RUN_ALL, CodeSite, code
from test_earlier_ends import by_steps, lease_of, scoped, shown
from test_pbt_step import newest, population

from headrace.client.convert import trial as client_trial
from headrace.client.lineage import schedule
from headrace.client.model import TrialInfo
from headrace.client.records import trial_rows
from headrace.client.wording import best_of_other_code, other_code
from headrace_services.scheduler.rpc import convert as rpc_convert
from headrace_services.scheduler.rpc.waiting import waits_for
from headrace_services.scheduler.store import studies, trials
from headrace_services.scheduler.store.database import transaction

OWN, EDITED = code(h="A"), code(h="B")


async def seen(site: CodeSite, number: int) -> TrialInfo:
    """A trial as a client sees it."""
    async with transaction(site.engine) as conn:
        view = await trials.one(conn, site.study_id, number)
    assert view is not None
    return client_trial(rpc_convert.trial(site.name, view, site.spec))


async def begun(engine: AsyncEngine, **policy: object) -> CodeSite:
    site = CodeSite(engine, population(**policy))
    await site.create()
    await site.connect(slots=4)
    await site.kick()
    return site


async def generation(site: CodeSite, step: int, values: list[float], edited: tuple[int, ...] = ()) -> None:
    """Let all trials report; some of them run the edited code."""
    for lease, value in zip(newest(site), values, strict=True):
        ran = EDITED if lease.number in edited else OWN
        await site.step(site.running(lease, step, value, ran))


async def test_a_trial_that_takes_over_a_state_takes_over_its_mark(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await generation(site, 2, [0.9, 0.3, 0.2, 0.1], edited=(3,))
    copied = await seen(site, 0)
    assert [(one.trial, one.first_step, one.last_step, one.files) for one in copied.other_code] == [
        (3, 1, 2, ("h.py",))
    ]
    said = "was trained in part by other code than the study started with, steps 1 to 2 of trial 3: h.py"
    assert copied.code_changed == ("h.py",)
    assert [(await seen(site, number)).code_changed for number in (1, 2)] == [(), ()]
    (exploited,) = await site.events("trial_exploited")
    assert "trained in part by other code (steps 1 to 2 of trial 3)" in exploited.message
    # Its value from before the copy is its own. From its next report on it is not, although the edit is undone.
    assert other_code(copied).startswith(said.replace(":", ", after the result that counts:"))
    await generation(site, 4, [0.01, 0.3, 0.2, 0.9], edited=())
    copied = await seen(site, 0)
    assert other_code(copied) == said
    study, _ = await shown(site)
    assert best_of_other_code(study) == "the best trial, 0, was trained in part by other code than the first"
    assert trial_rows(study, [copied])[0]["other_code"] == "steps 1 to 2 of trial 3"
    known = {number: await seen(site, number) for number in range(4)}
    assert [(one.trial, one.code_changed) for one in schedule(known, 0)] == [(3, ("h.py",)), (0, ())]
    # A trial that copies it in turn has the same steps. Here they are its own, and it had trained on.
    assert known[3].lineage[-1].donor == 0
    assert [(one.trial, one.first_step, one.last_step) for one in known[3].other_code] == [(3, 1, 4)]
    assert other_code(known[3]).startswith("ran other code than the study started with")


async def test_a_state_from_before_an_edit_marks_nobody(engine: AsyncEngine) -> None:
    site = await begun(engine)
    await generation(site, 2, [0.1, 0.2, 0.3, 0.9])  # 3 copies 0, as of step 2
    donor, copier = newest(site)[0], newest(site)[3]
    await site.step(site.running(donor, 3, 0.1, EDITED))
    await site.step(gone(copier, "LOST"))
    await site.kick()
    await site.step(site.running(newest(site)[3], 4, 0.2, OWN))
    assert (await seen(site, 0)).code_changed == ("h.py",)
    assert (await seen(site, 3)).code_changed == ()


@pytest.mark.parametrize("attempts", [1, 2])
async def test_a_copy_says_which_steps_were_of_other_code(engine: AsyncEngine, attempts: int) -> None:
    site = await begun(engine)
    await generation(site, 2, [0.4, 0.2, 0.3, 0.5])
    lease = newest(site)[1]
    await site.step(site.running(lease, 3, 0.2, EDITED))
    if attempts == 2:  # it resumes from its own checkpoint, with the study's own code
        await site.step(gone(lease, "LOST"))
        await site.kick()
    rest = newest(site)
    for number, value in ((0, 0.4), (2, 0.3), (3, 0.9), (1, 0.1)):
        await site.step(site.running(rest[number], 4, value, OWN if attempts == 2 else code()))
    assert [(one.trial, one.first_step, one.last_step) for one in (await seen(site, 3)).other_code] == [
        (1, 3, 3 if attempts == 2 else 4)
    ]


async def test_a_trial_that_resumes_from_its_own_checkpoint_of_edited_code_stays_marked(
    engine: AsyncEngine,
) -> None:
    site = CodeSite(engine, make_spec(policy=RUN_ALL, max_trials=1))
    await site.create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(site.running(lease, 1, 0.5, OWN))
    await site.step(site.running(lease, 2, 0.4, EDITED), gone(lease, "LOST"))
    again = await lease_of(site, 0)
    assert again.resume is not None
    await site.step(site.running(again, 3, 0.3, OWN))
    found = await seen(site, 0)
    assert (found.code_changed, found.result_of_other_code) == (("h.py",), True)
    assert [(one.first_step, one.last_step) for one in (await seen(site, 0)).other_code] == [(2, 2)]
    assert [one["first_step"] for one in (await site.trial(0)).checkpoint["other_code"]] == [2]


@pytest.mark.parametrize(
    ("objective", "doubted"),
    [
        (scoped("best"), False),
        (scoped("best", keep="best"), False),
        (scoped("last"), True),
        (scoped("mean_last_k", k=2), True),
    ],
)
async def test_a_best_value_from_before_an_edit_is_not_doubted(
    engine: AsyncEngine, objective: dict[str, Any], doubted: bool
) -> None:
    site = CodeSite(engine, make_spec(policy=RUN_ALL, max_trials=1, objective=objective))
    await site.create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(site.running(lease, 3, 0.2, OWN))
    await site.step(site.running(lease, 9, 0.3, code()))
    await site.step(by_steps(18))
    again = await lease_of(site, 0)
    await site.step(site.loaded(again, EDITED))
    assert (await seen(site, 0)).result_of_other_code is False  # it has reported nothing since
    await site.step(site.running(again, 12, 0.25, code()))
    found = await seen(site, 0)
    assert found.code_changed == ("h.py",)
    by_last = found.counted_end is None
    assert found.result_of_other_code is (doubted and by_last)
    assert (", after the result that counts" in other_code(found)) is not (doubted and by_last)
    # Its next end belongs to the edit only if its best report does.
    await site.step(site.running(again, 18, 0.15, code()))
    assert (await seen(site, 0)).result_of_other_code is True
    await site.step(by_steps(27))
    third = await lease_of(site, 0)
    await site.step(site.running(third, 27, 0.9, code()))
    assert (await seen(site, 0)).result_of_other_code is True
    study, _ = await shown(site)
    assert best_of_other_code(study) == "the best trial, 0, ran other code than the first"


async def test_a_program_that_ends_by_itself_marks_what_it_saves(engine: AsyncEngine) -> None:
    site = CodeSite(engine, make_spec(policy=RUN_ALL, max_trials=1))
    await site.create()
    await site.connect(slots=1)
    (lease,) = await site.kick()
    await site.step(site.running(lease, 1, 0.4, OWN), site.running(lease, 2, 0.4, EDITED))
    saved = site.report(lease, 2, 0.4).checkpoint
    await site.step(gone(lease, "FINISHED", checkpoint=saved, by_itself=True))
    row = await site.trial(0)
    assert (row.reason, len(row.checkpoint["other_code"])) == ("COMPLETED", 1)


async def test_a_trial_says_for_which_edit_its_study_is_paused(engine: AsyncEngine) -> None:
    site = CodeSite(engine, make_spec(policy=RUN_ALL, max_trials=2, on_code_change="pause"))
    await site.create()
    await site.connect(slots=2)
    first, second = await site.kick()
    await site.step(site.running(first, 1, 0.5, OWN))
    await site.step(site.loaded(second, EDITED))
    async with transaction(engine) as conn:
        study, view = await studies.get(conn, site.study_id), await trials.one(conn, site.study_id, 1)
        assert study is not None
        assert view is not None
        waits = await waits_for(conn, study, [view.trial])
    assert waits[1].startswith(
        "the study to be resumed (paused at trial 1: h.py has changed since the study began. Put"
    )
