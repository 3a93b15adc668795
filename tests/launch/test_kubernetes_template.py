"""A site's manifest of a pod: completed for a worker, or refused with what is wrong."""

import pytest
import yaml
from kubernetes_site import GPUS, KIND, WORKER

from headrace.errors import InvalidFieldError
from headrace.launch.kubernetes import manifest
from headrace.launch.kubernetes.manifest import Worker

SITE = """
template:
  metadata: {annotations: {site: a}, labels: {team: vision}}
  spec:
    nodeSelector: {pool: gpus}
    containers:
      - {name: sidecar, image: logs}
      - name: worker
        image: mine:2
        args: [worker, --pass-env=WANDB_*]
        resources: {limits: {nvidia.com/gpu: 4}}
"""


def test_a_sites_template_is_kept_and_completed() -> None:
    template = manifest.checked(yaml.safe_load(SITE), GPUS)
    worker = Worker(scheduler="h:1", store="s3://b", kind=GPUS, idle_exit="5m")
    pod = manifest.job(template, worker, launch="tune", seat=0, nonce="x")["spec"]["template"]
    assert pod["spec"]["nodeSelector"] == {"pool": "gpus"}
    assert pod["metadata"]["labels"]["team"] == "vision"
    assert pod["metadata"]["annotations"] == {"site": "a"}
    args = pod["spec"]["containers"][1]["args"]
    assert args[:3] == ["worker", "--pass-env=WANDB_*", "--name=$(POD_NAME)"]
    assert "args" not in pod["spec"]["containers"][0]
    assert "volumes" not in pod["spec"], "without tokens"
    assert template == manifest.checked(yaml.safe_load(SITE), GPUS), "it is not changed"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("just text", "is no manifest of a pod"),
        ("spec: {containers: []}", "has no container named worker"),
        ("spec: {containers: [{name: other, image: a}]}", "has no container named worker (got other)"),
        ("spec: {containers: [{name: worker}]}", "image: is missing"),
        ("spec: {containers: [{name: worker, image: a}]}", "has no GPUs"),
        (
            "spec: {containers: [{name: worker, image: a, resources: {limits: {nvidia.com/gpu: 2}}}]}",
            "is not --gpus-per-worker, 4 (got nvidia.com/gpu: 2)",
        ),
        (
            "{restartPolicy: Always, containers: [{name: worker, image: a, resources: {limits: {gpu: 4}}}]}",
            "would start a worker twice",
        ),
    ],
)
def test_a_template_that_cannot_work_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        manifest.checked(yaml.safe_load(text), GPUS)
    assert said in str(caught.value)
    assert "--template" in str(caught.value)


WORKER_OF = "containers: [{{name: worker, image: a, {}}}]"


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("containers: 5", "spec.containers: is not a list (got 5)"),
        ("containers: worker", "spec.containers: is not a list (got worker)"),
        ("containers: [worker]", "spec.containers[0]: is not a mapping (got worker)"),
        ("template: 5", "spec: is not a mapping (got 5)"),
        ("{metadata: {labels: [a]}, spec: {containers: []}}", "metadata.labels: is not a mapping"),
        (WORKER_OF.format("resources: 4"), "spec.containers[0].resources: is not a mapping (got 4)"),
        (WORKER_OF.format("resources: {limits: []}"), "resources.limits: is not a mapping"),
        (WORKER_OF.format("args: worker"), "args: is not a list (got worker)"),
        (WORKER_OF.format("args: [worker, 4]"), 'args[1]: is not text (got 4). Write it in quotes: "4".'),
        (WORKER_OF.format("env: {A: b}"), "env: is not a list"),
        (WORKER_OF.format("env: [{name: A, value: 1}]"), "env[0].value: is not text (got 1)"),
        (WORKER_OF.format("env: [A]"), "env[0]: is not a mapping (got A)"),
    ],
)
def test_a_template_with_other_types_is_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        manifest.checked(yaml.safe_load(text), KIND)
    assert said in str(caught.value)


def test_what_is_empty_in_a_template_is_as_if_it_were_missing() -> None:
    text = (
        "{metadata: , spec: {volumes: , containers: [{name: worker, image: a, args: , env: , resources: }]}}"
    )
    template = manifest.checked(yaml.safe_load(text), KIND)
    assert manifest.job(template, WORKER, launch="tune", seat=0, nonce="x")


def test_a_worker_that_is_not_root_must_be_able_to_read_its_token() -> None:
    spec = "{{securityContext: {}, containers: [{{name: worker, image: a, securityContext: {}}}]}}"
    for pod, container in (("{runAsUser: 1000}", "{}"), ("{}", "{runAsNonRoot: true}")):
        template = manifest.checked(yaml.safe_load(spec.format(pod, container)), KIND)
        with pytest.raises(InvalidFieldError, match=r"fsGroup: is missing.*Write fsGroup: 1000 "):
            manifest.check_token_is_readable(template)
    for pod, container in (
        ("{runAsUser: 1000, fsGroup: 1000}", "{}"),
        ("{runAsUser: 1000}", "{runAsUser: 0}"),
    ):
        manifest.check_token_is_readable(manifest.checked(yaml.safe_load(spec.format(pod, container)), KIND))
