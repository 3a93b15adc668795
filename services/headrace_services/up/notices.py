"""What `headrace up` tells people: coloured on a terminal, plain lines in a pipe or a log."""

import time
from pathlib import Path

from rich.console import Console
from rich.markup import escape

from headrace_services.up.supervisor import Notice

STYLES = {"progress": "dim", "good": "green", "trouble": "yellow"}


class Notices:
    """Prints the life of the children on a console. Plain output carries the time of day instead of colours."""

    def __init__(self, console: Console | None = None) -> None:
        self._console = console or Console(highlight=False, soft_wrap=True)
        self._width = 11

    def __call__(self, notice: Notice) -> None:
        style = STYLES[notice.kind]
        self._line(f"{escape(notice.child):<{self._width}} [{style}]{escape(notice.text)}[/]")

    def warn(self, text: str) -> None:
        """Says what may be wrong with the options."""
        self._line(f"[{STYLES['trouble']}]{escape(text)}[/]")

    def ready(self, *, seconds: float, addresses: list[str], home: Path, console: str | None = None) -> None:
        """Says that everything is running, and how to continue."""
        self._console.print()
        self._console.print(f"[bold green]Headrace is ready[/] on {', '.join(addresses)} ({seconds:.1f} s).")
        for what, how in (
            ("Run a study:", "headrace run STUDY.yaml"),
            ("See what there is:", "headrace studies"),
            *([("In a browser:", console)] if console else []),
            ("Logs:", str(home / "logs")),
            ("Stop everything:", "Ctrl-C (twice to kill)"),
        ):
            self._console.print(f"  {what:<19}[bold]{escape(how)}[/]")
        self._console.print()

    def others(self, told: list[tuple[str, str, str]]) -> None:
        """Says what to run on other machines: for each purpose the command, and what it needs."""
        self._console.print("On other machines, where Headrace is installed:")
        for what, command, needs in told:
            self._console.print(f"  {what:<19}[bold]{escape(command)}[/]")
            self._console.print(f"  {'':<19}{escape(needs)}")
        self._console.print()

    def stopping(self, signal_name: str) -> None:
        """Says that a signal arrived and what happens now."""
        self._console.print(f"\n{signal_name}: stopping. A second one kills.")

    def killing(self) -> None:
        """Says that the second signal arrived."""
        self._console.print("Killing what still runs.")

    def stopped(self, home: Path) -> None:
        """Says that nothing is running any more."""
        self._console.print(f"Headrace has stopped. Studies and checkpoints are kept in {home}.")

    def _line(self, markup: str) -> None:
        clock = "" if self._console.is_terminal else time.strftime("%H:%M:%S ")
        self._console.print(f"{clock}{markup}")
