"""Trains the trials of a study in a database until the study ends, each time that it is reopened."""

from collections.abc import Callable, Container

from study_site import StudySite, gone

from headrace.spec import StudySpec


def improving(number: int, step: int) -> float:
    """A value that improves with the steps. The trials differ, and not in the order of their numbers."""
    return ((number * 7) % 11 + 1) / (1 + step)


async def train(
    site: StudySite,
    value: Callable[[int, int], float] = improving,
    *,
    fails: Container[int] = (),
    most: int = 500,
) -> None:
    """Let every running trial report at its milestone until the study ends or nothing runs. Trials that should
    fail do so before they report."""
    for _ in range(most):
        running = [row for row in await site.trials() if row.lease_id]
        if not running and not await site.kick():
            return
        for row in running:  # whatever follows the study's end is stale
            lease = site.leases[row.lease_id]
            if row.number in fails:
                await site.step(gone(lease, "FAILED", error="ValueError: no"))
            else:
                await site.step(site.report(lease, row.milestone, value(row.number, row.milestone)))
    raise AssertionError("the study does not end")


async def spec_now(site: StudySite) -> StudySpec:
    """The study's spec as stored in its row."""
    return StudySpec.stored((await site.study()).spec)
