"""The Job of a worker: the site's manifest of a pod, completed. Pure.

A template is a PodTemplate as kubectl knows it, or the spec of a pod alone: the image, resources, tolerations, volumes,
whatever the site needs. Its container `worker` gets the arguments of `headrace worker`; what the template says itself
comes first. The loop adds names, labels, the token's volume, and what makes a seat hold one worker at most.
"""

import copy
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Final

from headrace.errors import InvalidFieldError, Violation
from headrace.launch.decision import Kind
from headrace.launch.kubernetes.shapes import misshapen
from headrace.launch.options import worker_options

LAUNCH: Final = "headrace.io/launch"
SEAT: Final = "headrace.io/seat"
SECRET: Final = "headrace.io/join-secret"  # noqa: S105  # an annotation's name
DELIVERED: Final = "headrace.io/delivered"
"""When a secret got its token."""
CONTAINER: Final = "worker"
GPU: Final = "nvidia.com/gpu"
JOINING: Final = "/run/headrace/joining"
KEPT_S: Final = 600
"""How long an ended Job stays for its log."""
GRACE_S: Final = 60
"""How long trials have to save when the pod is told to end."""
_MARGIN_S: Final = 30
_NAME: Final = re.compile(r"[a-z0-9]([a-z0-9-]*[a-z0-9])?")
_LONGEST_NAME: Final = 40
"""A pod's name has 63 characters: `headrace-NAME-SEAT-xxxxx`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Worker:
    """What each worker of a launch is told."""

    scheduler: str
    store: str
    kind: Kind
    idle_exit: str
    lifetime: str = ""
    tokens: bool = False
    """Whether workers join with a token."""
    authority: str = field(default="", repr=False)
    """The authority of the scheduler's certificate, in PEM, which comes with the token; empty: the system's."""
    pass_env: str = ""

    def arguments(self) -> list[str]:
        """Of `headrace worker`; the name is the pod's."""
        own = {
            "--name": "$(POD_NAME)",
            "--tls-ca": f"{JOINING}/ca.pem" if self.authority else "",
            "--join": f"@{JOINING}/token" if self.tokens else "",
        }
        shared = worker_options(
            scheduler=self.scheduler,
            store=self.store,
            kind=self.kind,
            idle_exit=self.idle_exit,
            lifetime=self.lifetime,
            pass_env=self.pass_env,
            drain_grace_s=GRACE_S,
        )
        return [*(f"{name}={value}" for name, value in own.items() if value), *shared]


def default_template(image: str, kind: Kind) -> dict[str, Any]:
    """A pod without a site's own template: GPUs of NVIDIA, or as many cores as CPU slots."""
    resources: dict[str, Any] = (
        {"limits": {GPU: kind.slots}}
        if kind.on_gpu
        else {"requests": {"cpu": str(kind.slots), "memory": f"{2 * kind.slots}Gi"}}
    )
    return {
        "spec": {
            "securityContext": {"seccompProfile": {"type": "RuntimeDefault"}},
            "containers": [
                {
                    "name": CONTAINER,
                    "image": image,
                    "args": ["worker", "--run-as=trials"],
                    "resources": resources,
                    # Root with these rights runs trials as another user, who cannot read the worker's files.
                    "securityContext": {
                        "allowPrivilegeEscalation": False,
                        "capabilities": {
                            "drop": ["ALL"],
                            "add": ["CHOWN", "DAC_OVERRIDE", "FOWNER", "KILL", "SETGID", "SETUID"],
                        },
                    },
                    "volumeMounts": [{"name": "shm", "mountPath": "/dev/shm"}],  # noqa: S108  # of the pod
                }
            ],
            "volumes": [{"name": "shm", "emptyDir": {"medium": "Memory", "sizeLimit": "2Gi"}}],
        }
    }


def checked(template: object, kind: Kind, *, option: str = "--template") -> dict[str, Any]:
    """The template as `metadata` and `spec` of a pod. Raises InvalidFieldError, which names all that is missing."""
    if not isinstance(template, dict):
        raise InvalidFieldError(
            [_problem(option, "", "is no manifest of a pod", "Write a PodTemplate in YAML.")]
        )
    pod = template.get("template", template)  # of a PodTemplate, or the pod itself
    spec = pod.get("spec") if isinstance(pod, dict) and "spec" in pod else pod
    metadata = pod.get("metadata") if isinstance(pod, dict) else None
    if wrong := misshapen({"metadata": metadata, "spec": spec}, option):
        raise InvalidFieldError(wrong)
    containers = spec.get("containers") if isinstance(spec, dict) else None
    named = [one for one in containers or () if isinstance(one, dict) and one.get("name") == CONTAINER]
    problems = []
    if len(named) != 1:
        problems.append(
            _problem(
                option,
                ", ".join(str(one.get("name")) for one in containers or () if isinstance(one, dict)),
                f"has no container named {CONTAINER}",
                "Its image runs `headrace worker`.",
            )
        )
    else:
        problems += _of_container(named[0], kind, option)
    if isinstance(spec, dict) and spec.get("restartPolicy", "Never") != "Never":
        problems.append(
            _problem(
                f"{option}: restartPolicy",
                str(spec["restartPolicy"]),
                "would start a worker twice with one token",
                "Leave it out.",
            )
        )
    if problems:
        raise InvalidFieldError(problems)
    return copy.deepcopy({"metadata": metadata or {}, "spec": spec})


def check_token_is_readable(template: Mapping[str, Any], *, option: str = "--template") -> None:
    """Raises InvalidFieldError if the worker is another user than root, who cannot read the secret with its token."""
    (container,) = [one for one in template["spec"]["containers"] if one["name"] == CONTAINER]
    of_pod = template["spec"].get("securityContext") or {}
    closed = {**of_pod, **(container.get("securityContext") or {})}
    if (closed.get("runAsUser") or closed.get("runAsNonRoot")) and of_pod.get("fsGroup") is None:
        user = str(closed.get("runAsUser") or "")
        raise InvalidFieldError(
            [
                _problem(
                    f"{option}: securityContext.fsGroup",
                    "",
                    "is missing, so a worker that is not root cannot read its join token",
                    f"Write fsGroup: {user or '1000'} in the securityContext of the pod.",
                )
            ]
        )


def _of_container(container: Mapping[str, Any], kind: Kind, option: str) -> list[Violation]:
    problems = []
    if not container.get("image"):
        problems.append(_problem(f"{option}: image", "", "is missing", "Name the image of the worker."))
    limits = (container.get("resources") or {}).get("limits") or {}
    gpus = [name for name in limits if "gpu" in str(name)]
    if kind.on_gpu and not gpus:
        problems.append(
            _problem(
                f"{option}: resources.limits",
                "",
                f"has no GPUs, and --gpus-per-worker says {kind.slots}",
                f"Write {GPU}: {kind.slots}.",
            )
        )
    elif kind.on_gpu and str(limits[gpus[0]]) != str(kind.slots):
        problems.append(
            _problem(
                f"{option}: resources.limits",
                f"{gpus[0]}: {limits[gpus[0]]}",
                f"is not --gpus-per-worker, {kind.slots}",
                "Give the same number in both.",
            )
        )
    return problems


def job(template: Mapping[str, Any], worker: Worker, *, launch: str, seat: int, nonce: str) -> dict[str, Any]:
    """The Job of a seat. `nonce` distinguishes it from earlier ones of the seat."""
    labels = {LAUNCH: launch, SEAT: str(seat), "app.kubernetes.io/part-of": "headrace"}
    pod = copy.deepcopy(dict(template))
    pod["metadata"] = {**pod["metadata"], "labels": {**(pod["metadata"].get("labels") or {}), **labels}}
    spec = pod["spec"]
    (container,) = [one for one in spec["containers"] if one["name"] == CONTAINER]
    container["args"] = [*(container.get("args") or ["worker"]), *worker.arguments()]
    own = {"name": "POD_NAME", "valueFrom": {"fieldRef": {"fieldPath": "metadata.name"}}}
    container["env"] = [own, *(container.get("env") or ())]
    spec.setdefault("automountServiceAccountToken", False)  # trials run programs of users
    spec.setdefault("enableServiceLinks", False)
    spec.setdefault("terminationGracePeriodSeconds", GRACE_S + _MARGIN_S)
    spec["restartPolicy"] = "Never"
    annotations = {}
    if worker.tokens:
        annotations[SECRET] = f"{name_of(launch, seat)}-{nonce}"
        mount = {"name": "joining", "mountPath": JOINING, "readOnly": True}
        container["volumeMounts"] = [*(container.get("volumeMounts") or ()), mount]
        secret = {"secretName": annotations[SECRET], "defaultMode": 0o400}
        spec["volumes"] = [*(spec.get("volumes") or ()), {"name": "joining", "secret": secret}]
    return {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name_of(launch, seat), "labels": labels, "annotations": annotations},
        "spec": {
            "backoffLimit": 0,
            "podReplacementPolicy": "Failed",  # a pod that drains still holds the seat
            "parallelism": 1,
            "completions": 1,
            "ttlSecondsAfterFinished": KEPT_S,
            "template": pod,
        },
    }


def secret(
    name: str, token: str, owner: Mapping[str, Any], *, now: datetime, authority: str = ""
) -> dict[str, Any]:
    """The secret with a join token and what to trust, which goes with its Job."""
    metadata = owner["metadata"]
    return {
        "apiVersion": "v1",
        "kind": "Secret",
        "type": "Opaque",
        "metadata": {
            "name": name,
            "labels": dict(metadata["labels"]),
            "annotations": {DELIVERED: now.isoformat()},
            "ownerReferences": [
                {"apiVersion": "batch/v1", "kind": "Job", "name": metadata["name"], "uid": metadata["uid"]}
            ],
        },
        "stringData": {"token": token, **({"ca.pem": authority} if authority else {})},
    }


def name_of(launch: str, seat: int) -> str:
    """The name of a seat's Job."""
    return f"headrace-{launch}-{seat}"


def check_name(launch: str, *, option: str = "--name") -> None:
    """Raises InvalidFieldError unless a launch of this name can name objects of Kubernetes."""
    if len(launch) > _LONGEST_NAME or not _NAME.fullmatch(launch):
        raise InvalidFieldError(
            [
                _problem(
                    option,
                    launch,
                    "cannot name objects of Kubernetes",
                    f"Use at most {_LONGEST_NAME} lower-case letters, digits and hyphens.",
                )
            ]
        )


def _problem(option: str, value: str, message: str, remedy: str) -> Violation:
    return Violation(field=option, value=value, message=message, remedy=remedy)
