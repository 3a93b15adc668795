"""Carries out the backstop: checks the trial of one stage, and sends it what `backstop.judge` orders.

What is known about a trial is also in the stage's file, so a restarted agent continues from there: a trial that
its predecessor stopped is continued with the next window.
"""

import logging
import signal
from dataclasses import replace

from headrace_services.bubble_agent.backstop import Action, Record, judge
from headrace_services.bubble_agent.link import Link
from headrace_services.bubble_agent.stage import TrialSeen
from headrace_services.bubble_agent.trial_process import TrialProcess

log = logging.getLogger(__name__)


class Watchman:
    """Watches the trials of one stage, one after another."""

    def __init__(self, link: Link) -> None:
        """No trial is known yet."""
        self._link = link
        self._process: TrialProcess | None = None
        self.record = Record()
        self._computed: int | None = None

    def trial(self) -> TrialSeen | None:
        """Returns the live trial beside the stage; None if there is none."""
        seen = self._link.trial()
        if seen is None:
            self._forget()
            return None
        if self._process is None or (self._process.pid, self._process.started) != (seen.pid, seen.started):
            self._forget()
            self._process = TrialProcess(seen.pid, seen.started)
            self._recall(seen.pid)
        return seen if self._process.alive else None

    def watch(self, now: int) -> None:
        """Judges the trial at this instant. Costs a few microseconds; `trial` must have been called recently."""
        process = self._process
        if process is None:
            return
        seen = self._link.gate(now)
        if seen.open or seen.waiting:
            self._computed = None
        elif self._link.file.header.device == "cpu":
            computed = process.computed_ns()
            if self._computed is None:
                self._computed = computed
            seen = replace(seen, ran=computed - self._computed)
        record, actions = judge(self.record, seen)
        if record == self.record:
            return
        self.record = record
        for action in actions:
            self._act(action, process)
        for name, value in (("stopped", record.stopped), ("evict", record.evicted)):
            self._link.write(name, int(value))
        self._link.write("offences", record.offences)

    def close(self) -> None:
        """Releases the trial, in its current state."""
        if self._process is not None and self.record.stopped:
            log.warning(
                "trial %d is stopped, for it did not close its gate: `kill -CONT %d` continues it",
                self._process.pid,
                self._process.pid,
            )
        self._forget()

    def _act(self, action: Action, process: TrialProcess) -> None:
        where = self._link.file.path.name
        match action:
            case Action.STOP:
                process.send(signal.SIGSTOP)
                log.warning(
                    "%s: trial %d did not close its gate, and is stopped (offence %d)",
                    where,
                    process.pid,
                    self.record.offences,
                )
            case Action.CONTINUE:
                process.send(signal.SIGCONT)
            case Action.EVICT:
                log.warning("%s: trial %d must leave at its next checkpoint", where, process.pid)

    def _recall(self, pid: int) -> None:
        says = self._link.says
        if says("judged") == pid:
            self.record = Record(
                stopped=bool(says("stopped")), offences=says("offences"), evicted=bool(says("evict"))
            )
            return
        for name in ("stopped", "offences", "evict"):
            self._link.write(name, 0)
        self._link.write("judged", pid)

    def _forget(self) -> None:
        if self._process is not None:
            self._process.close()
        self._process, self.record, self._computed = None, Record(), None
