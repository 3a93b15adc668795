"""Bad input of `headrace launch kubernetes` and `ray`: one line that names the option."""

import os
from importlib.util import find_spec
from pathlib import Path

import pytest
from command_line import headrace_command

KUBERNETES = ("launch", "kubernetes", "--max", "2", "--store", "s3://b")
RAY = ("launch", "ray", "--max", "2", "--store", "s3://b")
SLOTS = ("--cpu-slots", "1")
IMAGE = ("--image", "worker:1")


def refused(*arguments: str, folder: Path) -> str:
    env = {**os.environ, "HOME": str(folder), "HEADRACE_HOME": str(folder), "HEADRACE_ADDRESS": "127.0.0.1:1"}
    env.pop("KUBECONFIG", None)
    done = headrace_command(*arguments, folder=folder, env=env)
    assert done.returncode in (1, 2), done.stdout
    assert "Traceback" not in done.stderr
    assert "failed:" not in done.stderr, done.stderr
    return done.stderr


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((*IMAGE,), "--gpus-per-worker and --cpu-slots"),
        ((*IMAGE, *SLOTS, "--gpus-per-worker", "1"), "exclude each other"),
        ((*SLOTS,), "--image and --template: are both missing"),
        ((*SLOTS, *IMAGE, "--template", "pod.yaml"), "--image and --template: exclude each other"),
        ((*SLOTS, "--template", "none.yaml"), "none.yaml"),
        ((*SLOTS, "--template", "broken.yaml"), "--template: is not YAML"),
        ((*SLOTS, "--template", "pod.yaml"), "has no container named worker"),
        ((*SLOTS, *IMAGE, "--name", "A_b"), "--name: cannot name objects of Kubernetes"),
        ((*SLOTS, *IMAGE, "--idle-exit", "soon"), "--idle-exit"),
        ((*SLOTS, *IMAGE, "--lifetime", "0"), "--lifetime"),
        ((*SLOTS, *IMAGE, "--label", "zone"), "--label: is not KEY=VALUE"),
        ((*SLOTS, *IMAGE, "--kubeconfig", "none"), "There is no Kubernetes configuration: none"),
        ((*SLOTS, *IMAGE), "There is no Kubernetes configuration"),
    ],
)
def test_of_kubernetes(given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    (tmp_path / "pod.yaml").write_text("spec: {containers: [{name: other}]}")
    (tmp_path / "broken.yaml").write_text("spec: {containers: [")
    assert said in refused(*KUBERNETES, *given, folder=tmp_path)


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ((), "--gpus-per-worker and --cpu-slots"),
        ((*SLOTS, "--cluster", "ray://head:10001"), "--cluster: is an address of Ray's client"),
        ((*SLOTS, "--name", "a/b"), "--name"),
        ((*SLOTS, "--idle-exit", "soon"), "--idle-exit"),
        pytest.param(
            SLOTS,
            "headrace[ray]",
            marks=pytest.mark.skipif(find_spec("ray") is not None, reason="Ray is installed here"),
        ),
    ],
)
def test_of_ray(given: tuple[str, ...], said: str, tmp_path: Path) -> None:
    assert said in refused(*RAY, *given, folder=tmp_path)
