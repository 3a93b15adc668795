"""`headrace track`: copies studies to MLflow, W&B or TensorBoard, and sends notifications."""

import os
import signal
import threading
from collections.abc import Callable
from contextlib import ExitStack
from types import FrameType
from typing import Annotated

import typer

from headrace.cli import wording
from headrace.cli.failure import USAGE, CommandError
from headrace.cli.session import AsJson, Session
from headrace.client import Client
from headrace.client.model import StudyInfo
from headrace.home import console_of
from headrace.track.all_studies import AllStudies
from headrace.track.exporter import Exporter, Stopped, Target
from headrace.track.targets import locked, parse, target_of
from headrace.track.trouble import Trouble

_LOOK_S = 0.5
_CLOSE_S = 20.0
"""How long the copies in progress may take to close after a signal."""


def track(
    context: typer.Context,
    to: Annotated[
        list[str],
        typer.Option(
            "--to",
            metavar="TOOL[=WHERE]",
            help="mlflow=URI, wandb=FOLDER, tensorboard=FOLDER or webhook=URL. Repeat the option for more.",
            show_default=False,
        ),
    ],
    study: Annotated[
        str | None, typer.Argument(metavar="[STUDY]", help="The study's name.", show_default=False)
    ] = None,
    everything: Annotated[
        bool,
        typer.Option(
            "--all", help="All studies of the project, and those that come later. Runs until Ctrl-C."
        ),
    ] = False,
    as_json: AsJson = False,
) -> None:
    """Copy a study to an experiment tracker while it runs or afterwards, or send notifications.

    Each trial becomes a run, grouped by study: the parameters, every metric by step, the state, the reason, the rule
    that decided, and the checkpoint's location. Nothing is doubled or missing if the command is killed and started
    again, and a trial that continues continues its run. The command only reads: a tracker that is slow or down
    delays no trial, and a token for a viewer is enough (HEADRACE_TOKEN).

    MLflow: without a URI, MLFLOW_TRACKING_URI. Each study is an experiment. Credentials are MLflow's own variables.

    W&B: runs are written offline below FOLDER/wandb (default: WANDB_DIR, else here); `wandb sync` uploads them.

    TensorBoard: event files are written to FOLDER (default: runs), with parameters for the HParams tab.

    Webhook: a signed request at a study's end, at its failure, and for each new best trial. HEADRACE_WEBHOOK_SECRET
    is the secret that both sides know.

    `headrace up --track TOOL=WHERE` starts this command for all studies.

    [bold]Examples[/bold]

    headrace track digits --to mlflow=http://localhost:5000

    headrace track digits --to tensorboard=runs && tensorboard --logdir runs

    headrace track --all --to wandb=. --to webhook=https://example.com/hooks/headrace
    """
    if (study is None) != everything:
        raise CommandError(
            "Give a study or --all." if study is None else "Give a study or --all, not both.",
            remedy="`headrace studies` lists the studies.",
            code=USAGE,
        )
    session = Session.of(context)
    destinations = list(dict.fromkeys(parse(text, os.environ) for text in to))
    with ExitStack() as stack:
        for one in destinations:
            one.hide()
        client = stack.enter_context(session.client())
        mine = (
            client.address,
            *(os.environ.get(name, "") for name in ("HEADRACE_TOKEN", "HEADRACE_PROJECT")),
        )
        for one in destinations:
            stack.enter_context(locked(one, *mine, shared=study is not None))
            if study is not None:  # one that does not exist is an error before a tracker is asked
                stack.enter_context(locked(one, client.study(study).status().uid))
        targets = [target_of(one, os.environ, console_of(client.address)) for one in destinations]
        _Run(session, client, study, as_json=as_json).run(targets)


class _Run:
    """The exporters of one command, a thread for each target."""

    def __init__(self, session: Session, client: Client, study: str | None, *, as_json: bool) -> None:
        self._output, self._client, self._study, self._as_json = session.output, client, study, as_json
        self._stop = threading.Event()
        self._signal = 0
        self._scheduler = Trouble(f"The scheduler at {client.address}", self._say)
        self._failed: list[BaseException] = []
        self._lock = threading.Lock()

    def run(self, targets: list[Target]) -> None:
        """Runs until the study has ended, or until a signal. Raises KeyboardInterrupt after Ctrl-C."""
        previous = {which: signal.signal(which, self._on_signal) for which in (signal.SIGINT, signal.SIGTERM)}
        threads = [threading.Thread(target=self._target, args=(target,), daemon=True) for target in targets]
        try:
            for thread in threads:
                thread.start()
            for thread in threads:
                while thread.is_alive() and not self._stop.is_set():
                    thread.join(_LOOK_S)
            if self._failed:
                raise self._failed[0]
            if self._stop.is_set():
                self._client.close()  # ends watches
                for thread in threads:
                    thread.join(_CLOSE_S)
        finally:
            for which, handler in previous.items():
                signal.signal(which, handler)
        if self._signal == signal.SIGINT:
            raise KeyboardInterrupt

    def _on_signal(self, which: int, _: FrameType | None) -> None:
        self._signal = which
        self._stop.set()

    def _target(self, target: Target) -> None:
        exporter = Exporter(
            target=target,
            say=self._say,
            trouble=Trouble(target.title[:1].upper() + target.title[1:], self._say),
            scheduler=self._scheduler,
            wait=self._stop.wait,
            patient=self._study is None,
        )
        done: Callable[[StudyInfo], None] = lambda final: self._done(target, final)  # noqa: E731
        try:
            if self._study is None:
                AllStudies(client=self._client, exporter=exporter, done=done).run()
            elif (final := exporter.follow(self._client.study(self._study))) is not None:
                done(final)
        except Stopped:
            pass
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            self._failed.append(error)
            self._stop.set()

    def _done(self, target: Target, final: StudyInfo) -> None:
        with self._lock:
            if self._as_json:
                line = {
                    "type": "tracked",
                    "study": final.name,
                    "state": final.state.value,
                    "trials": final.counts.total,
                    "to": target.title,
                    "cursor": final.cursor,
                }
                self._output.json(line, indent=None)
            else:
                trials = wording.plural(final.counts.total, "trial")
                self._output.line(f"{final.name} ({final.state.value}): {trials} exported to {target.title}")

    def _say(self, text: str) -> None:
        with self._lock:
            self._output.note(text)
