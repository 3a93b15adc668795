"""The engine of Kubernetes: what the loop asks for, as calls to the API server. See the package's docstring."""

import secrets
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml

from headrace.launch.engine import EngineError, Member, Stage
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.api import Api, StatusError
from headrace.launch.kubernetes.manifest import DELIVERED, LAUNCH, SEAT, SECRET, Worker

FRESH: Final = timedelta(minutes=5)
"""A token that is older is replaced while its worker has not started: it lasts twice as long, and a mounted secret
follows within two minutes."""

DELETION: Final = timedelta(minutes=2)
"""Without a living pod, a Job that is deleted is gone long before."""


class Kubernetes:
    """One launch, in one namespace. Implements `headrace.launch.engine.Engine`."""

    def __init__(
        self,
        api: Api,
        template: Mapping[str, Any],
        worker: Worker,
        *,
        launch: str,
        most: int,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`template` has been `manifest.checked`. Seats are below `most`."""
        self._api, self._template, self._worker, self._launch = api, template, worker, launch
        self._most = most
        self._clock = clock
        batch, core = "/apis/batch/v1/namespaces", "/api/v1/namespaces"
        self._jobs = f"{batch}/{api.namespace}/jobs"
        self._pods = f"{core}/{api.namespace}/pods"
        self._secrets = f"{core}/{api.namespace}/secrets"

    def members(self) -> Sequence[Member]:
        """The Jobs that have not ended, and the pods that live although their Job has ended or is gone, by seat."""
        labels = f"{LAUNCH}={self._launch}"
        jobs = {_uid(job): job for job in self._api.list(self._jobs, labels) if _holds_seat(job)}
        pods = {_owner(pod) or _uid(pod): pod for pod in self._api.list(self._pods, labels) if _lives(pod)}
        delivered = (
            {_name(one): one for one in self._api.list(self._secrets, labels)}
            if jobs and self._worker.tokens
            else {}
        )
        found = [self._member(job, pods.get(uid), delivered) for uid, job in jobs.items()]
        found += [_draining(pod) for owner, pod in pods.items() if owner not in jobs]
        return sorted(found, key=lambda member: member.seat)

    def submit(self, seats: Collection[int]) -> None:
        """One Job for each seat. A seat that another loop has filled stays as it is. In place of a seat whose name
        stays taken, another free seat is filled; then EngineError says by what.
        """
        blocked = [said for seat in seats if (said := self._fill(seat)) is not None]
        if not blocked:
            return
        left = len(blocked)
        held = {*seats, *(member.seat for member in self.members())}
        for seat in range(self._most):
            if left and seat not in held:
                said = self._fill(seat)
                left -= said is None
                blocked += [said] if said is not None else []
        if told := [one for one in blocked if one]:
            raise EngineError(
                f"{'; '.join(told)}.",
                remedy="`kubectl get job -o yaml` shows owners and finalizers. Delete it, or use another --name.",
            )

    def withdraw(self, member: Member) -> None:
        """Nothing: the API server has one Job of a name, so no seat has two."""

    def deliver(self, member: Member, secret: str) -> bool:
        """Creates the secret that the member's pod mounts, or replaces one that is about to expire."""
        job = self._api.get(f"{self._jobs}/{manifest.name_of(self._launch, member.seat)}")
        if job is None or _uid(job) != member.id:
            return False
        name = _secret_of(job)
        if not name:
            return False
        authority = self._worker.authority
        made = manifest.secret(name, secret, job, now=self._clock(), authority=authority)
        path = f"{self._secrets}/{name}"
        try:
            old = self._api.get(path)
            if old is None:
                self._api.create(self._secrets, made)
            elif self._is_fresh(old):
                return False
            else:
                made["metadata"]["resourceVersion"] = old["metadata"]["resourceVersion"]
                self._api.replace(path, made)
        except StatusError as error:
            if error.code != 409:
                raise
            # Another loop's, or this one's, if its first answer was lost.
            now = self._api.get(path) or {}
            return bool((now.get("data") or {}).get("token") == b64encode(secret.encode()).decode())
        return True

    def shown(self, seats: Collection[int]) -> str:
        """The manifests, as YAML for kubectl."""
        return "---\n".join(yaml.safe_dump(self._job(seat), sort_keys=False) for seat in seats)

    def _job(self, seat: int) -> dict[str, Any]:
        nonce = secrets.token_hex(3)
        return manifest.job(self._template, self._worker, launch=self._launch, seat=seat, nonce=nonce)

    def _fill(self, seat: int) -> str | None:
        """Creates the Job of a seat, or leaves it to another loop or a later turn. If something else keeps the
        name, returns what, for people; empty while an ended Job is being deleted.
        """
        name = manifest.name_of(self._launch, seat)
        try:
            self._api.create(self._jobs, self._job(seat))
        except StatusError as error:
            if error.code != 409:
                raise
        else:
            return None
        old = self._api.get(f"{self._jobs}/{name}")
        if old is None:
            return None
        if (old["metadata"].get("labels") or {}).get(LAUNCH) != self._launch:
            return f"The Job {name} does not belong to this launch, and keeps a seat's name"
        if _holds_seat(old):
            return None
        deleted = old["metadata"].get("deletionTimestamp")
        if deleted is None:
            self._api.delete(f"{self._jobs}/{name}", uid=_uid(old))
            return None
        is_late = self._clock() - datetime.fromisoformat(deleted) > DELETION
        return f"The Job {name} was deleted at {deleted} and is still there" if is_late else ""

    def _member(
        self, job: Mapping[str, Any], pod: Mapping[str, Any] | None, delivered: Mapping[str, Any]
    ) -> Member:
        phase = "" if pod is None else (pod.get("status") or {}).get("phase", "")
        secret = delivered.get(_secret_of(job))
        awaits = (
            self._worker.tokens
            and bool(_secret_of(job))  # else it was created when the launch had no tokens
            and pod is not None
            and phase in ("", "Pending")
            and bool(pod["spec"].get("nodeName"))
            and (secret is None or not self._is_fresh(secret))
        )
        return Member(
            seat=int(job["metadata"]["labels"][SEAT]),
            id=_uid(job),
            stage=Stage.PENDING if phase in ("", "Pending") else Stage.RUNNING,
            worker="" if pod is None else _name(pod),
            why=_why(job, pod),
            awaits_token=awaits,
        )

    def _is_fresh(self, secret: Mapping[str, Any]) -> bool:
        text = (secret["metadata"].get("annotations") or {}).get(DELIVERED)
        return text is not None and self._clock() - datetime.fromisoformat(text) < FRESH


def _name(one: Mapping[str, Any]) -> str:
    return str(one["metadata"]["name"])


def _uid(one: Mapping[str, Any]) -> str:
    return str(one["metadata"]["uid"])


def _secret_of(job: Mapping[str, Any]) -> str:
    """The name of the secret that a Job's pod mounts; empty if it has none."""
    return str((job["metadata"].get("annotations") or {}).get(SECRET, ""))


def _owner(pod: Mapping[str, Any]) -> str:
    """The uid of a pod's Job."""
    owners = pod["metadata"].get("ownerReferences") or ()
    return next((str(one["uid"]) for one in owners if one.get("kind") == "Job"), "")


def _holds_seat(job: Mapping[str, Any]) -> bool:
    """Whether a Job has not ended."""
    conditions = (job.get("status") or {}).get("conditions") or ()
    return not any(
        one.get("type") in ("Complete", "Failed") and one.get("status") == "True" for one in conditions
    )


def _lives(pod: Mapping[str, Any]) -> bool:
    """Whether a pod may still start, or has not ended."""
    return (pod.get("status") or {}).get("phase") not in ("Succeeded", "Failed")


def _draining(pod: Mapping[str, Any]) -> Member:
    """What holds a seat when its Job was deleted with kubectl, until the worker has drained."""
    return Member(
        seat=int(pod["metadata"]["labels"][SEAT]), id=_uid(pod), stage=Stage.RUNNING, worker=_name(pod)
    )


def _why(job: Mapping[str, Any], pod: Mapping[str, Any] | None) -> str:
    """Why a pod has not started, in Kubernetes' words."""
    if pod is None:
        return "suspended" if job["spec"].get("suspend") else "its pod is not created yet"
    status = pod.get("status") or {}
    if status.get("phase", "Pending") != "Pending":
        return ""
    waiting = [(one.get("state") or {}).get("waiting") or {} for one in status.get("containerStatuses") or ()]
    reasons = [*waiting, *(one for one in status.get("conditions") or () if one.get("status") == "False")]
    for one in reasons:
        if one.get("message") or one.get("reason"):
            return str(one.get("message") or one.get("reason"))[:200]
    return ""
