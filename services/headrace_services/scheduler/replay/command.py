"""`headrace replay`: was every decision of a study what a single thread would have decided?"""

from dataclasses import asdict

import typer

from headrace.cli.failure import CommandError
from headrace.cli.session import AsJson, Session, StudyArgument

SHOWN = 10


def replay(context: typer.Context, study: StudyArgument, as_json: AsJson = False) -> None:
    """Replay a study's event log through one policy on one thread, and compare every decision.

    Several schedulers may have made the decisions, through kills and outages. The log records what they decided,
    and when; the replay asks a new policy the same questions in the same order. Exits with 1 if an answer differs.

    \b
    headrace replay digits
    headrace replay digits --json | jq .differences
    """
    from headrace_services.scheduler.replay.replaying import replay_study

    session = Session.of(context)
    with session.client() as client:
        found = replay_study(client, study)
    if as_json:
        session.output.json({**asdict(found), "identical": found.identical})
    else:
        session.output.line(
            f"{found.events} events: {found.decisions} decisions and {found.starts} first starts compared, "
            f"{len(found.differences) or 'none'} differ{'s' if len(found.differences) == 1 else ''}."
        )
        if found.reworded:
            session.output.line(
                f"{found.reworded} decisions are the same, worded differently: another version of Headrace wrote them."
            )
        for difference in found.differences[:SHOWN]:
            session.output.line(f"  event {difference.cursor}: the log says   {difference.logged}")
            session.output.line(
                f"  {' ' * len(str(difference.cursor))}        the replay says {difference.replayed}"
            )
    if not found.identical:
        raise CommandError(
            f"{len(found.differences)} of the decisions on study {study} cannot be reproduced from its log.",
            remedy="Please report it with the log: `headrace export` or `headrace replay --json`.",
        )
