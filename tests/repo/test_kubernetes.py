"""deploy/kubernetes: valid by the published schemas, strictly, with options that exist, and closed by default."""

import copy
import json
import shutil
import subprocess
from functools import cache
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import kubernetes_validate
import pytest
import typer
import yaml

from headrace.launch.decision import Kind
from headrace.launch.kubernetes import manifest

ROOT = Path(__file__).resolve().parents[2]
FOLDER = ROOT / "deploy" / "kubernetes"
VERSIONS = ("1.30", "1.37")
"""The oldest and the newest release that the manifests are for."""
needs_kubectl = pytest.mark.skipif(
    shutil.which("kubectl") is None, reason="kubectl, which builds the overlays, is not installed"
)


@cache
def written(folder: str) -> tuple[dict[str, Any], ...]:
    """The resources in a folder's files, before kustomize."""
    kustomization = yaml.safe_load((FOLDER / folder / "kustomization.yaml").read_text())
    files = [name for name in kustomization["resources"] if name.endswith(".yaml")]
    return tuple(one for name in files for one in yaml.safe_load_all((FOLDER / folder / name).read_text()))


@cache
def built(folder: str) -> tuple[dict[str, Any], ...]:
    done = subprocess.run(
        ["kubectl", "kustomize", str(FOLDER / folder)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    return tuple(yaml.safe_load_all(done.stdout))


def validate(resource: dict[str, Any], version: str) -> None:
    kubernetes_validate.validate(resource, version, strict=True)


def pods(resources: tuple[dict[str, Any], ...]) -> dict[str, dict[str, Any]]:
    """The pod templates, by the name of their controller."""
    kinds = ("Deployment", "StatefulSet", "Job")
    return {one["metadata"]["name"]: one["spec"]["template"] for one in resources if one["kind"] in kinds}


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", ["base", "launch"])
def test_each_resource_is_valid(folder: str, version: str) -> None:
    for resource in written(folder):
        validate(resource, version)


@needs_kubectl
@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("folder", ["base", "gpu"])
def test_each_overlay_is_valid(folder: str, version: str) -> None:
    for resource in built(folder):
        validate(resource, version)
        assert resource["kind"] == "Namespace" or resource["metadata"]["namespace"] == "headrace"


def test_the_check_finds_a_key_that_does_not_exist() -> None:
    for key, value in (("replica", 2), ("replicas", "two")):
        broken = copy.deepcopy(next(one for one in written("base") if one["kind"] == "Deployment"))
        broken["spec"][key] = value
        with pytest.raises(kubernetes_validate.ValidationError):
            validate(broken, VERSIONS[0])


@pytest.mark.parametrize("folder", ["base", "launch"])
def test_every_option_exists(folder: str) -> None:
    commands = {point.name: point for point in entry_points(group="headrace.commands")}
    for pod in pods(written(folder)).values():
        (container,) = pod["spec"]["containers"]
        name, *given = container["args"]
        known = options(commands[name].load()) if name in commands else options_of_launch(given[0])
        for argument in given:
            if argument.startswith("--"):
                assert argument.partition("=")[0] in known, f"{name} {argument}"


def options(command: Any) -> set[str]:
    app = typer.Typer()
    app.command()(command)
    found = typer.main.get_command(app)
    return {option for parameter in found.params for option in parameter.opts}


def options_of_launch(engine: str) -> set[str]:
    """Those of `headrace launch ENGINE`."""
    from headrace.cli.launch import launch

    group: Any = typer.main.get_command(launch)
    return {option for parameter in group.commands[engine].params for option in parameter.opts}


@pytest.mark.parametrize("folder", ["base", "launch"])
def test_pods_are_closed_and_measured(folder: str) -> None:
    for name, pod in pods(written(folder)).items():
        spec = pod["spec"]
        is_worker, is_launch = name == "headrace-worker", name == "headrace-launch"
        assert spec["automountServiceAccountToken"] is is_launch, name
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}, name
        (container,) = spec["containers"]
        closed = container["securityContext"]
        assert closed["allowPrivilegeEscalation"] is False, name
        assert closed["capabilities"]["drop"] == ["ALL"], name
        assert set(container["resources"]["requests"]) == {"cpu", "memory"}, name
        assert "memory" in container["resources"]["limits"], name
        if is_worker:  # root, for --run-as
            assert "--run-as=trials" in container["args"]
            assert len(closed["capabilities"]["add"]) == 6
        else:
            assert spec["securityContext"]["runAsNonRoot"] is True, name
            assert closed["readOnlyRootFilesystem"] is True, name
        if not is_worker and not is_launch:
            assert {"readinessProbe", "livenessProbe"} <= set(container), name


def test_services_and_budgets_select_pods() -> None:
    labels = [pod["metadata"]["labels"] for pod in pods(written("base")).values()]
    for one in written("base"):
        if one["kind"] in ("Service", "PodDisruptionBudget"):
            selector = one["spec"]["selector"]
            wanted = selector.get("matchLabels", selector)
            assert any(wanted.items() <= found.items() for found in labels), one["metadata"]["name"]


def test_a_worker_has_more_time_to_end_than_its_trials_to_save() -> None:
    spec = pods(written("base"))["headrace-worker"]["spec"]
    (grace,) = [one for one in spec["containers"][0]["args"] if one.startswith("--drain-grace=")]
    assert spec["terminationGracePeriodSeconds"] >= int(grace.partition("=")[2]) + 20


@needs_kubectl
def test_with_gpus_a_worker_offers_nothing_else() -> None:
    (container,) = pods(built("gpu"))["headrace-worker"]["spec"]["containers"]
    assert container["resources"]["limits"]["nvidia.com/gpu"] == 1
    assert not [one for one in container["args"] if one.startswith("--cpu-slots")]
    assert "--join=@/run/headrace/joining/token" in container["args"]


def example(name: str) -> Any:
    """A file that the page shows."""
    page = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
    (text,) = [block for block in page.split("```yml\n")[1:] if block.startswith(f"# {name}\n")]
    return text.partition("```")[0]


def overlay(folder: Path, content: str) -> tuple[dict[str, Any], ...]:
    """The resources of an overlay of a user, next to `deploy`."""
    shutil.copytree(ROOT / "deploy", folder / "deploy")
    (folder / "mine").mkdir()
    (folder / "mine" / "kustomization.yaml").write_text(content)
    done = subprocess.run(
        ["kubectl", "kustomize", str(folder / "mine")], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    resources = tuple(yaml.safe_load_all(done.stdout))
    for resource in resources:
        validate(resource, VERSIONS[1])
        assert resource["kind"] == "Namespace" or resource["metadata"]["namespace"] == "headrace"
    return resources


@needs_kubectl
def test_the_overlay_of_the_page_builds_and_is_valid(tmp_path: Path) -> None:
    resources = overlay(tmp_path, example("mine/kustomization.yaml"))
    (workers,) = [one for one in resources if one["kind"] == "StatefulSet"]
    (container,) = pods(resources)["headrace-worker"]["spec"]["containers"]
    assert workers["spec"]["replicas"] == 4
    assert container["image"] == "registry.example/headrace-worker:1"
    assert {"name": "STORE", "value": "s3://bucket/headrace"} in container["env"]
    assert container["env"][0]["name"] == "POD_NAME", "which the store's address did not replace"


@needs_kubectl
def test_launched_workers_take_the_place_of_the_fixed_ones_and_change_nothing_else(tmp_path: Path) -> None:
    mine = yaml.safe_load(example("mine/kustomization.yaml"))
    added = yaml.safe_load(example("added to mine/kustomization.yaml"))
    both = {**mine, **added, "patches": mine["patches"] + added["patches"]}
    fixed = overlay(tmp_path / "fixed", yaml.safe_dump(mine))
    found = overlay(tmp_path / "launched", yaml.safe_dump(both))
    assert [one for one in found if "launch" not in one["metadata"]["name"]] == [
        one for one in fixed if one["metadata"]["name"] != "headrace-worker"
    ]
    spec = pods(found)["headrace-launch"]["spec"]
    (container,) = spec["containers"]
    assert container["image"] == "registry.example/headrace-service:1"
    args = container["args"]
    assert {"--max=8", "--store=s3://bucket/headrace", "--template=/run/headrace/template/pod.yaml"} < set(
        args
    )
    assert len(args) == len({one.partition("=")[0] for one in args}), "no option was replaced by another one"
    assert {"name": "template", "configMap": {"name": "headrace-launch"}} in spec["volumes"]
    (binding,) = [one for one in found if one["kind"] == "RoleBinding"]
    assert binding["subjects"][0]["namespace"] == "headrace"


def test_the_template_of_the_page_is_accepted() -> None:
    kind = Kind(slots=1, on_gpu=True)
    template = manifest.checked(yaml.safe_load(example("pod.yaml")), kind)
    worker = manifest.Worker(scheduler="h:1", store="s3://b", kind=kind, idle_exit="5m", tokens=True)
    job = manifest.job(template, worker, launch="workers", seat=0, nonce="abcdef")
    validate(json.loads(json.dumps(job)), VERSIONS[1])


def test_what_contains_secrets_is_named_and_not_here() -> None:
    told = (FOLDER / "base" / "kustomization.yaml").read_text()
    page = (ROOT / "docs" / "how-to" / "run-on-kubernetes.md").read_text()
    for folder in ("base", "launch"):
        for resource in written(folder):
            assert resource["kind"] not in ("Secret", "ConfigMap")
        for name in wanted_objects(pods(written(folder))):
            assert name in page, name
            assert folder != "base" or name in told, name


def wanted_objects(found: dict[str, dict[str, Any]]) -> set[str]:
    names = set()
    for pod in found.values():
        for volume in pod["spec"]["volumes"]:
            names.add(volume.get("secret", {}).get("secretName") or volume.get("configMap", {}).get("name"))
        for variable in pod["spec"]["containers"][0].get("env", ()):
            names.add(variable.get("valueFrom", {}).get("secretKeyRef", {}).get("name"))
    return names - {None}
