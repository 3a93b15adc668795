"""Scenarios: reading them, and running one against a driver. README.md says what a scenario may contain."""

import re
import secrets
import signal
import time
from collections.abc import Mapping
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import grpc
import yaml
from client_driver import ANSWER_S, Command, Driver, trial_program
from conformance_site import Site
from grpc_gate import Gate
from matching import mismatch

from headrace.ports import any_port
from headrace.v1 import study_pb2 as pb
from headrace.v1 import study_pb2_grpc

HERE = Path(__file__).resolve().parent
_NAME = re.compile(r"\$(\w+)")
_MAIN = "main"


@dataclass(frozen=True, slots=True, kw_only=True)
class Scenario:
    """One file of `scenarios/`."""

    name: str
    about: str
    needs: tuple[str, ...]
    steps: tuple[Mapping[str, Any], ...]
    long: bool
    """Whether it takes many seconds, and needs the scheduler or the worker for itself."""


def scenarios() -> list[Scenario]:
    """All of them; the long ones, which run alone, come last."""
    found = []
    for file in sorted((HERE / "scenarios").glob("*.yaml")):
        told = yaml.safe_load(file.read_text())
        found.append(
            Scenario(
                name=file.stem,
                about=told["about"],
                needs=tuple(told.get("needs", ())),
                steps=tuple(told["steps"]),
                long=told.get("long", False),
            )
        )
    return sorted(found, key=lambda one: one.long)


def wrong_studies() -> dict[str, Any]:
    """The table of wrong studies: `base`, and `cases`."""
    table: dict[str, Any] = yaml.safe_load((HERE / "wrong_studies.yaml").read_text())
    return table


def changed(base: Mapping[str, Any], case: Mapping[str, Any]) -> dict[str, Any]:
    """A wrong study: the base with whole fields of the spec replaced, or left out if they are null."""
    spec = {**base, **case.get("spec", {})}
    return {name: value for name, value in spec.items() if value is not None}


class Run:
    """One scenario with one driver."""

    def __init__(self, scenario: Scenario, driver: Driver, site: Site) -> None:
        self._scenario = scenario
        self._driver = driver
        self._site = site
        self._stack = ExitStack()
        self._under_way: dict[str, Command] = {}
        name = re.sub("[^a-z0-9]+", "-", scenario.name)[:40]
        self._known: dict[str, Any] = {"study": f"{name}-{secrets.token_hex(4)}"}
        self._clients: set[str] = set()
        self._gate: Gate | None = None
        self._own_stub: Any = None

    def to_its_end(self) -> None:
        """Runs every step. Raises AssertionError with the step at fault."""
        with self._stack:
            for place, step in enumerate(self._scenario.steps, start=1):
                try:
                    self._do(dict(step))
                except AssertionError as error:
                    raise AssertionError(f"step {place} ({_short(step)}): {error}") from error
            for client in self._clients:
                self._driver.send("disconnect", client=client).answer()

    def _do(self, step: dict[str, Any]) -> None:
        told = self._filled(step)
        match told:
            case {"op": op}:
                self._command(op, told)
            case {"wait": label}:
                self._ended(self._under_way.pop(label), told)
            case {"until": label}:
                events = "events" in told
                self._under_way[label].until(told["events" if events else "items"], events=events)
            case {"cancel": label}:
                self._driver.cancel(self._under_way[label])
            case {"fault": name}:
                getattr(self, f"_fault_{name}")(**_rest(told, "fault"))
            case {"check": name}:
                getattr(self, f"_check_{name}")(**_rest(told, "check"))
            case {"wrong_studies": True}:
                self._wrong_studies()
            case _:
                raise AssertionError("is no step")

    def _command(self, op: str, told: dict[str, Any]) -> None:
        args = dict(told.get("args", {}))
        client = f"{self._known['study']}/{told.get('client', _MAIN)}"
        if op == "connect":
            args.setdefault("address", self._variable("scheduler"))
            self._clients |= {client} if "error" not in told else set()
        elif op == "disconnect":
            self._clients.discard(client)
        elif op not in ("plan", "hello") and client not in self._clients:
            self._driver.send(
                "connect", client=client, args={"address": self._variable("scheduler")}
            ).answer()
            self._clients.add(client)
        more = {"timeout_s": told["timeout_s"]} if "timeout_s" in told else {}
        command = self._driver.send(op, args=args, client=client, **more)
        if "start" in told:
            self._under_way[told["start"]] = command
        else:
            self._ended(command, told)

    def _ended(self, command: Command, told: dict[str, Any]) -> None:
        answer = command.answer()
        if "error" in told:
            assert "error" in answer, f"there is no error, but {answer}"
            if (differs := mismatch(told["error"], answer["error"], "error")) is not None:
                raise AssertionError(f"{differs}; the error is {answer['error']}")
            error = answer["error"]
            assert error["message"], f"the error has no message: {error}"
            assert error["remedy"] or error["violations"], f"the error has no remedy: {error}"
            return
        assert "ok" in answer, f"it failed: {answer['error']}"
        if (differs := mismatch(told.get("expect", {}), answer["ok"])) is not None:
            raise AssertionError(differs)
        if "items" in told and (differs := mismatch(told["items"], command.items, "items")) is not None:
            raise AssertionError(differs)
        for name, path in told.get("save", {}).items():
            value: Any = {**answer["ok"], "items": command.items}
            for key in path.split("."):
                value = value[int(key)] if isinstance(value, list) else value[key]
            self._known[name] = value

    # ---- variables ----

    def _filled(self, told: Any) -> Any:
        match told:
            case Mapping():
                return {key: self._filled(value) for key, value in told.items()}
            case list():
                return [self._filled(value) for value in told]
            case str() if match := _NAME.fullmatch(told):
                return self._variable(match[1])
            case str():
                return _NAME.sub(lambda found: str(self._variable(found[1])), told)
        return told

    def _variable(self, name: str) -> Any:
        match name:
            case "scheduler":
                return self._site.scheduler.address
            case "gate":
                return self.gate.address
            case "tls":
                return self.gate.tls_address
            case "planner":
                return self._site.planner
            case "nobody":
                return self._known.setdefault("nobody", f"127.0.0.1:{any_port()}")
            case "ca":
                return str(self._site.certificate[0])
            case "other_ca":
                return str(self._site.other_certificate[0])
            case "trial":
                return trial_program(self._driver.name)
            case "here":
                return str(HERE)
            case "kills":
                return self._site.kills
            case "many":
                return 9 * self._site.kills
            case "large":
                return "x" * (5 << 20)
        assert name in self._known, f"${name} is not known"
        return self._known[name]

    @property
    def gate(self) -> Gate:
        """This scenario's own gate."""
        if self._gate is None:
            gate = Gate(target=self._site.scheduler.address, certificate=self._site.certificate)
            self._gate = self._stack.enter_context(gate)
        return self._gate

    # ---- faults ----

    def _fault_kill_scheduler(self, times: int = 1, away_s: float = 0.0, apart_s: float = 0.0) -> None:
        for _ in range(times):
            time.sleep(apart_s)
            self._site.scheduler.kill(signal.SIGKILL)
            time.sleep(away_s)
            self._site.scheduler.start()

    def _fault_start_worker(self) -> None:
        self._site.start_worker()
        self._stack.callback(self._site.kill_worker)

    def _fault_kill_worker(self, after_reports: int) -> None:
        """Kills the worker when that many reports of the study are stored, and restarts it."""
        deadline = time.monotonic() + ANSWER_S
        while len(self._reports()) < after_reports:
            assert time.monotonic() < deadline, f"{len(self._reports())} reports in {ANSWER_S:g} s"
            study = self._get_study()
            assert study.state == pb.STUDY_STATE_ACTIVE, f"the study is over before that: {study.detail}"
            time.sleep(0.1)
        self._site.kill_worker()
        self._site.start_worker()

    def _fault_gate(self, **faults: Any) -> None:
        for name, value in faults.items():
            now = getattr(self.gate, name)
            if isinstance(value, Mapping):
                now.update(value)
            else:
                setattr(self.gate, name, value)

    def _fault_pass(self, seconds: float) -> None:
        """Lets time pass: leases and their clock are the server's."""
        time.sleep(seconds)

    # ---- checks ----

    def _check_cursors(self, label: str, after: int = 0) -> None:
        """A watch showed every event of the study after a cursor once, in order, and the study's end."""
        items = self._known.get(f"{label}_items") or self._items(label)
        found = [cursor for item in items for cursor in item["cursors"]]
        newest = self._get_study().status.cursor
        missed = sorted(set(range(after + 1, newest + 1)) - set(found))
        doubled = sorted({cursor for cursor in found if found.count(cursor) > 1})
        assert not missed, f"{len(missed)} of {newest} events were missed: {missed[:20]}"
        assert not doubled, f"{len(doubled)} events came twice: {doubled[:20]}"
        assert found == sorted(found), "the events are not in order"
        assert found[-1] == newest, f"an event {found[-1]} came, and the newest is {newest}"

    def _items(self, label: str) -> list[dict[str, Any]]:
        command = self._under_way[label]
        answer = command.answer()
        assert "ok" in answer, f"the watch failed: {answer}"
        return command.items

    def _check_reports(self, reports: int | None = None, trials: int | None = None) -> None:
        """Each step of each trial was reported once, from 1 on and without a gap; optionally, that many in all."""
        seen = [(one.trial_number, one.step) for one in self._reports()]
        doubled = sorted({one for one in seen if seen.count(one) > 1})
        assert not doubled, f"reports came twice: {doubled[:20]}"
        for number in {trial for trial, _ in seen}:
            steps = sorted(step for trial, step in seen if trial == number)
            assert steps == list(range(1, len(steps) + 1)), f"trial {number} reported the steps {steps}"
        if reports is not None:
            assert len(seen) == reports, f"{len(seen)} reports are stored, and {reports} were answered"
        if trials is not None:
            assert len({trial for trial, _ in seen}) == trials

    def _check_detail(self, trial: int, text: str) -> None:
        """What a trial's end shows to people."""
        found = self._stub.GetTrial(
            pb.GetTrialRequest(name=f"{self._name}/trials/{trial}"), timeout=60
        ).trial.detail
        assert mismatch(text, found) is None, f"the detail of trial {trial} is {found!r}"

    def _check_sums(self, paused: bool) -> None:
        """Every report of the trial program equals that of an undisturbed run; optionally, some trials were paused."""
        reports = self._reports()
        for one in reports:
            total = 0
            for step in range(1, one.step + 1):
                total = (total * 31 + step) % 1_000_003
            found = one.metrics["sum"]
            assert found == total, (
                f"trial {one.trial_number} has the sum {found} at step {one.step}, not {total}"
            )
        attempts = {one.trial_number: one.attempt for one in reports}
        assert not paused or max(attempts.values()) > 1, "no trial was paused and resumed"

    def _reports(self) -> list[pb.TrialReport]:
        """All reports of the study, from the server itself."""
        request = pb.ListReportsRequest(parent=self._name, page_size=1000)
        found: list[pb.TrialReport] = []
        while True:
            page = self._stub.ListReports(request, timeout=60)
            found += page.reports
            if not page.next_page_token:
                return found
            request.page_token = page.next_page_token

    def _check_same_request(self, method: str, calls: int) -> None:
        """A method was called that often, each time with the same request and the same request id."""
        came = [one.request for one in self.gate.seen if one.method == method]
        assert len(came) == calls, f"{method} was called {len(came)} times, not {calls}"
        assert len(set(came)) == 1, f"the calls of {method} differ"
        assert getattr(pb, f"{method}Request").FromString(came[0]).request_id, "there is no request id"

    def _check_calls(self, method: str, least: int) -> None:
        """A method was called at least that often."""
        found = sum(one.method == method for one in self.gate.seen)
        assert found >= least, f"{method} was called {found} times, not {least} or more"

    def _check_metadata(self, name: str, value: str) -> None:
        """Every call that reached the gate carried this."""
        assert self.gate.seen, "no call came"
        for one in self.gate.seen:
            assert one.metadata.get(name) == value, f"{one.method} carries {one.metadata.get(name)!r}"

    @property
    def _name(self) -> str:
        return f"studies/{self._known['study']}"

    @property
    def _stub(self) -> Any:
        if self._own_stub is None:
            channel = grpc.insecure_channel(self._site.scheduler.address)
            self._stack.callback(channel.close)
            self._own_stub = study_pb2_grpc.StudyServiceStub(channel)
        return self._own_stub

    def _get_study(self) -> pb.Study:
        study: pb.Study = self._stub.GetStudy(pb.GetStudyRequest(name=self._name), timeout=60).study
        return study

    def _wrong_studies(self) -> None:
        """The whole table, through `create_study`."""
        table = wrong_studies()
        problems = []
        for case in table["cases"]:
            args = {"study": case.get("study", self._known["study"]), "spec": changed(table["base"], case)}
            told = {"op": "create_study", "args": args, "error": expected_error(case)}
            try:
                self._do(told)
            except AssertionError as error:
                problems.append(f"{case['name']}: {error}")
        assert not problems, "\n".join(problems)


def expected_error(case: Mapping[str, Any]) -> dict[str, Any]:
    """What every client gets for a wrong study."""
    violations = [dict(one) for one in case["violations"]]
    return {"code": "INVALID_ARGUMENT", "reason": "INVALID_FIELD", "violations": violations}


def _rest(told: dict[str, Any], name: str) -> dict[str, Any]:
    return {key: value for key, value in told.items() if key != name}


def _short(step: Mapping[str, Any]) -> str:
    text = ", ".join(f"{key}: {value}" for key, value in step.items() if key not in ("args", "expect"))
    return text[:120]
