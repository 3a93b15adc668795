"""The blocking client.

    from headrace import Client

    with Client() as client:
        study = client.create_study("digits", "study.yaml")
        final = study.wait()
        print(final.best.params, final.best.score)

Every method either returns or raises a `headrace.errors.HeadraceError` within the client's `timeout_s` (`wait`,
`watch`, `ask` and `ask_all` take as long as the study does). One client may be shared by threads; it must not be
carried over a `fork`.
"""

import time
import uuid
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

from headrace.client import ask_tell, flows, identities, machine_flows, study_flows, trial_flows
from headrace.client import projects as project_flows
from headrace.client.arguments import cursor, timeout
from headrace.client.connection import Patience
from headrace.client.events import Event, Update
from headrace.client.flow import blocking
from headrace.client.handles import AskedTrialBase, StudyBase, TrialBase
from headrace.client.model import StudyInfo
from headrace.client.planning import Planner, SearchProgress, TrainingPlan
from headrace.client.plots import Plots
from headrace.client.records import dataframe
from headrace.client.result import Result
from headrace.client.running import study_of
from headrace.client.shipping import OnBytes, shipped
from headrace.client.transfer_plan import planned
from headrace.client.transport import BlockingTransport
from headrace.client.warning import warn_of_edits, warn_of_failure
from headrace.client.watch import OnBreak
from headrace.spec.aims import Names
from headrace.target import Target

if TYPE_CHECKING:
    import pandas as pd


class Trial(TrialBase[BlockingTransport]):
    """One trial of a study."""

    info = blocking(trial_flows.trial)
    explain = blocking(trial_flows.explain)
    reports = blocking(trial_flows.trial_reports)
    read_log = blocking(trial_flows.read_log)
    log_path = blocking(trial_flows.log_path)
    annotate = blocking(trial_flows.annotate_trial)
    pause = blocking(trial_flows.pause_trial)
    resume = blocking(trial_flows.resume_trial)
    stop = blocking(trial_flows.stop_trial)


class AskedTrial(AskedTrialBase[BlockingTransport]):
    """A trial that the caller runs in its own loop."""

    report = blocking(ask_tell.report)
    complete = blocking(ask_tell.complete)
    infeasible = blocking(ask_tell.infeasible)
    give_back = blocking(ask_tell.give_back)


class Study(StudyBase[BlockingTransport]):
    """One study."""

    status = blocking(study_flows.status)
    best = blocking(study_flows.best)
    front = blocking(study_flows.front)
    trials = blocking(study_flows.trials)
    trials_page = blocking(study_flows.trials_page)
    reports = blocking(study_flows.reports)
    curves = blocking(study_flows.curves)
    trial_numbers = blocking(study_flows.trial_numbers)
    annotate = blocking(study_flows.annotate_study)
    importance = blocking(study_flows.importance)
    room = blocking(study_flows.room)
    pause = blocking(study_flows.pause_study)
    resume = blocking(study_flows.resume_study)
    stop = blocking(study_flows.stop_study)
    delete = blocking(study_flows.delete_study)
    add_trials = blocking(study_flows.add_trials)
    retry = blocking(study_flows.retry_trials)
    retry_warnings = blocking(study_flows.retry_warnings)
    extend = blocking(study_flows.extend_study)
    extension_warnings = blocking(study_flows.extension_warnings)

    @property
    def plot(self) -> Plots:
        """The figures of the report, such as `plot.curves()`, for a notebook. Needs `headrace[report]`."""
        return Plots(self)

    def trial(self, number: int) -> Trial:
        """The handle of a trial."""
        return Trial(self.transport, self.name, number)

    def watch(self, after: int = 0, *, on_break: OnBreak | None = None) -> Iterator[Update]:
        """Follows the study to its end. Yields every event with a cursor above `after` once and in order, even
        if connections break; `on_break` is called at each break. The study in the last update has ended.

        Cursors count from 1. They have gaps only where events were deleted by age. An update without events means
        that no further event exists up to `update.study.cursor`: the first update has none if nothing is new, and
        a later one if the newest events were deleted. So do not wait for the event with a certain cursor: `events`
        reads those up to now.
        """
        return self.transport.watch(self.name, cursor(after), on_break)

    def events(self, after: int = 0, *, until: int | None = None) -> Iterator[Event]:
        """Every event that exists now, oldest first, or those with a cursor above `after`. Then it ends, even
        if the study is still running. `until` is an earlier cursor of the study at which to end instead.

        Events that were deleted by age are left out, and leave gaps in the cursors. If the scheduler stops
        answering for the client's `timeout_s`, an error is raised.
        """
        newest = self.status().cursor if until is None else until
        yield from self.transport.events(self.name, cursor(after), newest)

    def wait(self, timeout_s: float | None = None) -> StudyInfo:
        """Waits until the study has ended and returns it, with a warning if it failed, or if its trials ran
        different code. Raises `TimeoutError` if that takes longer than `timeout_s`.
        """
        timeout_s = timeout(timeout_s)
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        final = self.status()
        if not final.state.ended:
            for update in self.transport.watch(self.name, final.cursor, deadline=deadline):
                final = update.study
        warn_of_failure(final)
        warn_of_edits(final)
        return final

    def ask(
        self, *, client_id: str | None = None, lease_s: float | None = None, timeout_s: float | None = None
    ) -> AskedTrial | None:
        """The next trial to run in the caller's own loop; None when the study is over, with a warning if it
        failed.

        While every trial waits for the results of others, this waits at most `timeout_s`, then raises
        `TimeoutError`. A warning about a long wait says what it waits for. The caller keeps the trial as long as
        the program lives: the client renews its lease in the background. If the program dies, others get the
        trial after `lease_s` seconds (10 minutes if None)."""
        found = self.transport.run(
            ask_tell.suggest(self, client_id=client_id, lease_s=lease_s, timeout_s=timeout_s)
        )
        if found is None:
            return None
        asked = AskedTrial(self.transport, found)
        self.transport.renewer.hold(asked, ask_tell.LEASE_S if lease_s is None else lease_s)
        return asked

    def ask_all(self, *, client_id: str | None = None, lease_s: float | None = None) -> Iterator[AskedTrial]:
        """Trial after trial, until the study is over: `for asked in study.ask_all(): ...`.

        Waits as `ask` does. The whole loop has one `client_id`. If the loop is left early, the current trial is
        still held: end it or give it back."""
        client_id = client_id or uuid.uuid4().hex
        while (asked := self.ask(client_id=client_id, lease_s=lease_s)) is not None:
            yield asked

    def result(self) -> Result:
        """The study with its trials and reports, as of now. It has `best`, `dataframe()`, `plot()` and
        `report()`.
        """
        study = self.status()
        warn_of_edits(study)
        return Result(study=study, trials=self.trials(), reports=self.reports())

    def dataframe(self) -> "pd.DataFrame":
        """One row for each trial: its state and values, its configuration as `param.NAME`, the values
        that count as `counted.NAME`, and the metrics of its last report as `metric.NAME`. Needs `headrace[report]`."""
        return dataframe(self.status(), self.trials())


class Client:
    """A connection to a scheduler. Threads may share one client; it must not be carried over a `fork`."""

    def __init__(
        self,
        address: str | None = None,
        timeout_s: float = 30.0,
        *,
        connect_timeout_s: float = 5.0,
        tls_ca: str | Path | None = None,
        token: str | None = None,
        project: str | None = None,
    ) -> None:
        """`address` is as in `headrace.home.address`. `timeout_s` limits each operation with all its retries;
        until the first answer, `connect_timeout_s` does. `tls_ca` is the certificate authority to trust (PEM).
        The default is `HEADRACE_TLS_CA`, or else the system's. Each call carries `token` as a bearer token. The
        default is `HEADRACE_TOKEN`, or else the token of `headrace login`.

        If the scheduler requires no token, this client sees the studies of `project`, by default
        `HEADRACE_PROJECT`."""
        patience = Patience(timeout_s=timeout_s, connect_timeout_s=connect_timeout_s)
        target = Target.of_user(address, tls_ca=tls_ca, token=token, project=project)
        self.transport = BlockingTransport(target, patience)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    @property
    def address(self) -> str:
        """The scheduler's address."""
        return self.transport.target.address

    studies = blocking(flows.studies)
    preview = blocking(flows.preview)
    workers = blocking(flows.workers)
    server_info = blocking(flows.server_info)
    shares = blocking(flows.shares)
    who_am_i = blocking(identities.who_am_i)
    create_token = blocking(identities.create_token)
    tokens = blocking(identities.tokens)
    revoke_token = blocking(identities.revoke_token)
    projects = blocking(project_flows.projects)
    create_project = blocking(project_flows.create_project)
    set_project = blocking(project_flows.set_project)
    drain = blocking(machine_flows.drain)
    undrain = blocking(machine_flows.undrain)
    cordon = blocking(machine_flows.cordon)
    uncordon = blocking(machine_flows.uncordon)
    upkeep = blocking(flows.upkeep)
    clean_up = blocking(flows.clean_up)

    def study(self, name: str) -> Study:
        """The handle of a study."""
        return Study(self.transport, name)

    def create_study(
        self,
        name: str | None,
        spec: flows.AnySpec,
        *,
        planner: str | None = None,
        on_progress: Callable[[SearchProgress], None] | None = None,
        ship: bool | None = None,
        on_bytes: OnBytes | None = None,
        warn: bool = True,
    ) -> Study:
        """Creates a study from a spec, a mapping with a study file's keys, or the path of a study file, and
        starts it.

        If `study_id` is None, the name comes from the mapping or the file. A `transfer.plan` is requested first:
        from the planner at `planner`, or else at `HEADRACE_PLANNER`, or else from one that is started here.
        `on_progress` is called while it searches; an exception raised there cancels everything.

        With `ship=True`, the folder of the study's program is shipped to workers. By default it is shipped if
        the study's `code` says so, or if the scheduler is on another machine. `on_bytes` is called, in another
        thread, with the number of bytes sent.

        Before anything is sent, a finite space with fewer points than trials causes a `UserWarning`, unless
        `warn=False`."""
        study_id, found = flows.to_create(name, spec, warn=warn)
        self.transport.run(flows.require_free(self, study_id, found))
        found = planned(found, planner, on_progress)
        found = shipped(self.transport, self.address, found, ship, on_bytes)
        return self.study(self.transport.run(flows.create_study(self, study_id, found)).name)

    def run(
        self,
        function: Callable[..., Any],
        space: Mapping[str, Any],
        *,
        trials: int,
        name: str | None = None,
        minimize: Names = (),
        maximize: Names = (),
        timeout_s: float | None = None,
        **settings: Any,
    ) -> Result:
        """Runs a function's trials on workers, waits for the end and returns the result.

        `function` belongs to a module or to the running script: workers import it from its file. A function in a
        notebook is sent to them by value, which needs `headrace[notebook]` on both sides. `settings` are further
        keys of a study file, such as `steps`, `policy` or `resources`, and `scope` and `k` of its objective.
        Without `name`, the study is named after the function, with six digits. Raises `TimeoutError` after
        `timeout_s`. The study then continues, as it does after Ctrl-C."""
        timeout_s = timeout(timeout_s)
        its_name, spec = study_of(
            function, space, name, minimize=minimize, maximize=maximize, trials=trials, **settings
        )
        study = self.create_study(its_name, spec)
        study.wait(timeout_s)
        return study.result()

    def plan(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        *,
        planner: str | None = None,
        on_progress: Callable[[SearchProgress], None] | None = None,
        **options: Any,
    ) -> TrainingPlan:
        """The fastest way to split a training job, from the planner's server at `planner` (see `Planner`)."""
        with Planner(planner) as served:
            return served.plan(model, cluster, on_progress=on_progress, **options)

    def simulate(
        self,
        model: str | Mapping[str, Any],
        cluster: str | Mapping[str, Any],
        degrees: Mapping[str, int],
        *,
        planner: str | None = None,
        **options: Any,
    ) -> TrainingPlan:
        """The best plan with these degrees, from the planner's server at `planner`."""
        with Planner(planner) as served:
            return served.simulate(model, cluster, degrees, **options)

    def close(self) -> None:
        """Closes the connection; watches end."""
        self.transport.close()
