"""The engine of Kubernetes: what the loop asks for, as calls to the API server. See the package's docstring."""

import secrets
from base64 import b64encode
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import Any, Final

import yaml

from headrace.launch.engine import Member, Stage
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.api import Api, StatusError
from headrace.launch.kubernetes.manifest import DELIVERED, LAUNCH, SEAT, SECRET, Worker

FRESH: Final = timedelta(minutes=5)
"""A token that is older is replaced while its worker has not started: it lasts twice as long, and a mounted secret
follows within two minutes."""


class Kubernetes:
    """One launch, in one namespace. Implements `headrace.launch.engine.Engine`."""

    def __init__(
        self,
        api: Api,
        template: Mapping[str, Any],
        worker: Worker,
        *,
        launch: str,
        clock: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        """`template` has been `manifest.checked`."""
        self._api, self._template, self._worker, self._launch = api, template, worker, launch
        self._clock = clock
        batch, core = "/apis/batch/v1/namespaces", "/api/v1/namespaces"
        self._jobs = f"{batch}/{api.namespace}/jobs"
        self._pods = f"{core}/{api.namespace}/pods"
        self._secrets = f"{core}/{api.namespace}/secrets"

    def members(self) -> Sequence[Member]:
        """The Jobs that have not ended, by seat."""
        labels = f"{LAUNCH}={self._launch}"
        jobs = [job for job in self._api.list(self._jobs, labels) if _holds_seat(job)]
        pods = {_owner(pod): pod for pod in self._api.list(self._pods, labels)} if jobs else {}
        delivered = (
            {_name(one): one for one in self._api.list(self._secrets, labels)}
            if jobs and self._worker.tokens
            else {}
        )
        found = [self._member(job, pods.get(job["metadata"]["uid"]), delivered) for job in jobs]
        return sorted(found, key=lambda member: member.seat)

    def submit(self, seats: Collection[int]) -> None:
        """One Job for each seat. A seat that another loop has filled stays as it is."""
        for seat in seats:
            try:
                self._api.create(self._jobs, self._job(seat))
            except StatusError as error:
                if error.code != 409:
                    raise
                self._make_way(seat)

    def withdraw(self, member: Member) -> None:
        """Nothing: the API server has one Job of a name, so no seat has two."""

    def deliver(self, member: Member, secret: str) -> bool:
        """Creates the secret that the member's pod mounts, or replaces one that is about to expire."""
        job = self._api.get(f"{self._jobs}/{manifest.name_of(self._launch, member.seat)}")
        if job is None or job["metadata"]["uid"] != member.id:
            return False
        name = job["metadata"]["annotations"][SECRET]
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

    def _make_way(self, seat: int) -> None:
        """Deletes the ended Job of a seat; its name is free when its pod is gone."""
        path = f"{self._jobs}/{manifest.name_of(self._launch, seat)}"
        old = self._api.get(path)
        if old is not None and not _holds_seat(old) and not old["metadata"].get("deletionTimestamp"):
            self._api.delete(path, uid=old["metadata"]["uid"])

    def _member(
        self, job: Mapping[str, Any], pod: Mapping[str, Any] | None, delivered: Mapping[str, Any]
    ) -> Member:
        phase = "" if pod is None else (pod.get("status") or {}).get("phase", "")
        secret = delivered.get((job["metadata"].get("annotations") or {}).get(SECRET, ""))
        awaits = (
            self._worker.tokens
            and pod is not None
            and phase in ("", "Pending")
            and bool(pod["spec"].get("nodeName"))
            and (secret is None or not self._is_fresh(secret))
        )
        return Member(
            seat=int(job["metadata"]["labels"][SEAT]),
            id=job["metadata"]["uid"],
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
