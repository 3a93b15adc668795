"""docker-compose.yml, as far as it can be checked where no container engine runs."""

from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headrace.cli.app import build

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
KNOWN = {"build", "command", "depends_on", "environment", "healthcheck", "image", "ports", "restart"} | {
    "stop_grace_period",
    "volumes",
}


def test_services_use_known_keys_and_need_each_other() -> None:
    for name, service in SERVICES.items():
        assert set(service) <= KNOWN, name
        assert set(service.get("depends_on", {})) <= set(SERVICES)


def test_named_volumes_are_declared() -> None:
    used = {
        volume.partition(":")[0] for service in SERVICES.values() for volume in service.get("volumes", [])
    }
    assert {volume for volume in used if volume[0] not in "./$"} == set(COMPOSE["volumes"])


def test_ports_are_open_to_this_machine_alone() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_the_image_copies_what_there_is() -> None:
    inline = SERVICES["scheduler-1"]["build"]["dockerfile_inline"]
    for line in inline.splitlines():
        if line.startswith("COPY "):
            for source in line.split()[1:-1]:
                assert (ROOT / source).exists(), source


@pytest.mark.parametrize("service", [name for name, entry in SERVICES.items() if entry.get("command")])
def test_a_command_and_its_options_exist(service: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for variable, value in SERVICES[service].get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    program, name, *arguments = SERVICES[service]["command"]
    assert program == "headrace"
    typer.main.get_command(build(name)).commands[name].make_context(name, arguments)
