"""ReadCurves: the trials of a study with their curves, in columns."""
# ruff: noqa: ARG002  (every method takes the call's context)

import json
from collections.abc import AsyncIterator, Sequence
from dataclasses import replace
from datetime import UTC, datetime
from math import nan

from headrace.spec import CategoricalDomain, Domain, StudySpec
from headrace.spec.names import METRIC
from headrace.v1 import study_pb2 as pb
from headrace.v1 import trial_pb2
from headrace_services.scheduler.core.records import Study, Value
from headrace_services.scheduler.rpc import convert, names, pages
from headrace_services.scheduler.rpc.calls import Calls, Context, find_study
from headrace_services.scheduler.rpc.checks import Checks
from headrace_services.scheduler.store import curves
from headrace_services.scheduler.store.curves import Curves, Unread, Wanted
from headrace_services.scheduler.store.database import transaction
from headrace_services.scheduler.store.defects import reason_of
from headrace_services.scheduler.store.query import trial_keys

POINTS = 1000
MOST_POINTS = 10_000
MOST_NUMBERS = 100_000
"""The most trials of a page with numbers alone."""
MOST_VALUES = 300_000
"""The most values that one trial may have: 2.4 MB."""
_FIRST_TRIALS = 64
"""How many trials are read first; then as many as their size suggests."""
_VALUE_BYTES = 8
_TRIAL_BYTES = 24


class CurveCalls(Calls):
    """The call that pictures of many trials are drawn from."""

    async def ReadCurves(self, request: pb.ReadCurvesRequest, context: Context) -> pb.ReadCurvesResponse:
        """The curves of a study's trials, a page at a time."""
        study_id = names.parse_study(request.study, field="study")
        async with transaction(self.hub.engine) as conn:
            study = await find_study(conn, study_id)
            wanted_names, more = _valid_metrics(request.metrics), False
            which = trial_keys.filtered(study.spec, request.filter, datetime.now(UTC))
            window = pages.window(request, (int,), default=pages.MAX_SIZE)
            after = int(window.after[0]) if window.after else -1
            if request.numbers_only:
                found = await curves.numbers(conn, study.id, which, number=after, limit=MOST_NUMBERS + 1)
                token = window.token_after((found[MOST_NUMBERS - 1],)) if len(found) > MOST_NUMBERS else ""
                return pb.ReadCurvesResponse(numbers=found[:MOST_NUMBERS], next_page_token=token)
            if not wanted_names:
                reported = await curves.metrics(conn, study.id, which, number=after, limit=window.size)
                wanted_names, more = reported[: curves.MOST_METRICS], len(reported) > curves.MOST_METRICS
            wanted = Wanted(
                study_id=study.id,
                since=study.create_time,
                which=which,
                metrics=wanted_names,
                most_points=request.most_points or POINTS,
            )
        if request.metrics:
            _check_points(wanted)
        else:  # how many metrics there are is not the caller's choice
            wanted = replace(wanted, most_points=min(wanted.most_points, MOST_VALUES // wanted.width))
        columns = _Columns(study, wanted)
        columns.message.more_metrics = more
        async for one in self._batches(wanted, after, window.limit):
            if len(columns) == window.size or not columns.take(one):
                columns.message.next_page_token = window.token_after((columns.last,))
                break
        return columns.message

    async def _batches(self, wanted: Wanted, after: int, limit: int) -> AsyncIterator[Curves | Unread]:
        """The next trials, at most `limit`: read a few at a time, as their sizes are unknown."""
        count = max(1, min(_FIRST_TRIALS, MOST_VALUES // (wanted.most_points * wanted.width)))
        while limit > 0:
            async with transaction(self.hub.engine) as conn:
                found = await curves.after(conn, wanted, number=after, limit=min(count, limit))
            for one in found:
                yield one
            if len(found) < count:
                return
            after, limit = found[-1].number, limit - len(found)
            points = sum(len(one.steps) for one in found if isinstance(one, Curves))
            per_trial = points * wanted.width // len(found)
            count = max(1, min(pages.MAX_SIZE, MOST_VALUES // max(per_trial, 1)))


class _Columns:
    """A page that is being filled."""

    def __init__(self, study: Study, wanted: Wanted) -> None:
        self.message = pb.ReadCurvesResponse()
        self.last = -1
        self._width = wanted.width
        self._study = study.name
        self._spec: StudySpec = study.spec
        self._left = pages.MAX_BYTES
        self._values = [self.message.metrics.add(name=name).values for name in wanted.metrics]
        for name, domain in study.spec.space.items():
            choices = domain.values if isinstance(domain, CategoricalDomain) else ()
            self.message.parameters.add(name=name, choices=map(json.dumps, choices))

    def __len__(self) -> int:
        return len(self.message.numbers) + len(self.message.unshown)

    def take(self, one: Curves | Unread) -> bool:
        """Add a trial, unless the page would grow too large; a page has at least one trial."""
        if isinstance(one, Unread):
            self.message.unshown.add(name=names.trial_name(self._study, one.number), reason=one.reason)
            self.last = one.number
            return True
        try:
            params = [
                _place_or_value(one.params.get(name), domain) for name, domain in self._spec.space.items()
            ]
        except (TypeError, ValueError) as error:
            return self.take(Unread(number=one.number, reason=reason_of(error)))
        self._left -= _VALUE_BYTES * (len(one.steps) * self._width + len(params)) + _TRIAL_BYTES
        if self._left < 0 and len(self):
            return False
        message = self.message
        message.numbers.append(one.number)
        message.states.append(trial_pb2.TrialState.Value(f"TRIAL_STATE_{one.state}"))
        message.reasons.append(convert.reason(one.reason))
        message.scores.append(nan if one.score is None else one.score)
        message.points.append(len(one.steps))
        message.steps.extend(one.steps)
        message.times_s.extend(one.times_s)
        for column, values in zip(self._values, one.values, strict=False):
            column.extend(values)
        for parameter, value in zip(message.parameters, params, strict=True):
            if isinstance(value, int):
                parameter.places.append(value)
            else:
                parameter.values.append(value)
        self.last = one.number
        return True


def _place_or_value(value: Value | None, domain: Domain) -> int | float:
    """The place of a value among the choices, -1 for none; or a number, NaN for none."""
    if not isinstance(domain, CategoricalDomain):
        return nan if value is None else float(value)
    place = None if value is None else domain.place_of(value)
    return -1 if place is None else place


def _valid_metrics(given: Sequence[str]) -> list[str]:
    checks = Checks()
    for place, name in enumerate(given):
        if not METRIC.admits(name):
            checks.note(f"metrics[{place}]", name, "is not the name of a metric", f"Use {METRIC.use}.")
    checks.done()
    return list(dict.fromkeys(given))


def _check_points(wanted: Wanted) -> None:
    checks = Checks()
    if wanted.most_points * wanted.width > MOST_VALUES:
        checks.note(
            "most_points",
            wanted.most_points,
            f"is too many for {len(wanted.metrics)} metrics",
            f"Give {MOST_VALUES // wanted.width} or fewer, or name fewer metrics.",
        )
    checks.done()
