"""docker-compose.yml, as far as it can be checked without a container engine. With one: `make test-compose`."""

import json
import re
import subprocess
from pathlib import Path
from typing import Any

import pytest
import typer
import yaml

from headrace.cli.app import build
from headrace.mps import WELL_KNOWN
from headrace.scraping import NAMED_IN as METRICS_TOKEN

ROOT = Path(__file__).resolve().parents[2]
COMPOSE: dict[str, Any] = yaml.safe_load((ROOT / "docker-compose.yml").read_text(encoding="utf-8"))
SERVICES: dict[str, dict[str, Any]] = COMPOSE["services"]
WATCHING = ROOT / "services/compose_monitoring"


def test_services_need_each_other_and_volumes_are_declared() -> None:
    used = set()
    for service in SERVICES.values():
        assert set(service.get("depends_on", {})) <= set(SERVICES)
        used |= {volume.partition(":")[0] for volume in service.get("volumes", [])}
    files = {source for source in used if source.startswith("./")}
    assert used - files == set(COMPOSE["volumes"])
    assert all((ROOT / source).is_file() for source in files)


def test_images_of_others_are_pinned_by_digest() -> None:
    for name, service in SERVICES.items():
        if "build" not in service:
            pinned = r"\$\{[A-Z]+_IMAGE:-[a-z/]+:v?\d[\w.]*@sha256:[0-9a-f]{64}\}"
            assert re.fullmatch(pinned, service["image"]), name


def test_ports_are_open_to_this_machine_unless_somebody_says_otherwise() -> None:
    ports = [port for service in SERVICES.values() for port in service.get("ports", [])]
    assert ports
    (console,) = SERVICES["console"]["ports"]
    assert console.startswith("127.0.0.1:"), "it has no TLS, so it is never open to others"
    assert all(port.startswith("${HEADRACE_BIND:-127.0.0.1}:") for port in ports if port != console)
    assert "ports" not in SERVICES["postgres"]
    assert "ports" not in SERVICES["prometheus"]


def test_nobody_listens_without_tls() -> None:
    for name in ("scheduler-1", "scheduler-2", "planner"):
        words = SERVICES[name]["command"]
        assert "--insecure" not in words
        assert "--auth" not in words
        assert "--ca" in words or "--tls-key" in words


def holders(volume: str, *, writing: bool = False) -> set[str]:
    """The services that mount a volume."""
    return {
        name
        for name, service in SERVICES.items()
        for mounted in service.get("volumes", [])
        if mounted.partition(":")[0] == volume and not (writing and mounted.endswith(":ro"))
    }


def test_each_secret_is_where_it_is_used_alone() -> None:
    schedulers = {"scheduler-1", "scheduler-2"}
    assert holders("authority") == {"init-secrets", *schedulers}
    assert holders("secrets") == {"init-secrets", "postgres", "init-database"}, "the superuser's password"
    assert holders("database") == {"init-secrets", "init-database", "init-token", *schedulers}
    assert holders("access") == {"init-secrets", "init-token"}
    assert holders("joining") == {"init-secrets", "init-token", "worker"}
    assert holders("scraping") == {"init-secrets", "planner", "prometheus", *schedulers}
    assert holders("serving") == {"init-secrets", "planner"}
    assert holders("watching") == {"init-secrets", "grafana"}
    assert holders("trust") == {"init-secrets", "console"}
    assert holders("worker") == {"worker"}
    assert holders("joining", writing=True) == {"init-secrets", "init-token", "worker"}, (
        "it removes its token"
    )
    for volume in ("authority", "secrets", "database", "scraping", "serving", "watching", "trust"):
        assert holders(volume, writing=True) == {"init-secrets"}, volume


def neighbours(service: str) -> set[str]:
    """The services that share a network with a service."""

    def networks(name: str) -> set[str]:
        alone = SERVICES[name].get("network_mode") == "none"
        return set() if alone else set(SERVICES[name].get("networks", ["default"]))

    return {name for name in SERVICES if name != service and networks(name) & networks(service)}


def test_what_trials_reach_asks_for_tokens() -> None:
    """A trial is in the worker's container, so it reaches what the worker does: ports, and what listens there."""
    assert neighbours("worker") == {"scheduler-1", "scheduler-2", "planner"}
    assert neighbours("postgres") == {"init-database", "init-token", "scheduler-1", "scheduler-2"}
    assert COMPOSE["networks"]["database"]["internal"]
    assert neighbours("console") == {"scheduler-1", "scheduler-2"}
    assert "--metrics-listen" not in SERVICES["worker"]["command"]
    for name in neighbours("worker"):
        assert SERVICES[name]["environment"][METRICS_TOKEN] == "/run/headrace/scraping/token"
    assert neighbours("init-secrets") == set()


def test_trials_have_a_user_of_their_own_and_nobody_is_root_but_the_worker() -> None:
    stages = (ROOT / "services/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    worker = next(stage for stage in stages if stage.startswith("base AS worker"))
    service = next(stage for stage in stages if stage.startswith("base AS service"))
    assert "useradd --uid 10002 --create-home trials" in worker
    assert "chmod 700 /run/headrace " in worker, "all that volumes hold is behind it"
    assert "\nUSER headrace\n" in service
    assert "USER" not in worker
    assert "--run-as trials" in (ROOT / "services/compose_worker.sh").read_text(encoding="utf-8")
    added = {name for name, entry in SERVICES.items() if "cap_add" in entry}
    assert added == {"worker"}
    assert not {"ALL", "SYS_ADMIN", "SYS_PTRACE", "NET_ADMIN", "NET_RAW"} & set(SERVICES["worker"]["cap_add"])
    for name, entry in SERVICES.items():
        assert not entry.get("privileged"), name
        assert name == "postgres" or entry["cap_drop"] == ["ALL"], name
        assert name == "postgres" or "no-new-privileges:true" in entry["security_opt"], name


def test_prometheus_scrapes_every_service_that_shows_metrics() -> None:
    shown = {
        f"{name}:{words[words.index('--metrics-listen') + 1].rpartition(':')[2]}"
        for name, service in SERVICES.items()
        if "--metrics-listen" in (words := service.get("command", []))
    }
    read = yaml.safe_load((WATCHING / "prometheus.yml").read_text(encoding="utf-8"))
    (job,) = read["scrape_configs"]
    assert set(job["static_configs"][0]["targets"]) == shown
    assert len(shown) == 3
    token = Path(job["authorization"]["credentials_file"])
    assert f"{token.parent.name}:{token.parent}:ro" in SERVICES["prometheus"]["volumes"]
    alerts = (ROOT / "services/headrace_services/monitoring/alerts.yaml").read_text(encoding="utf-8")
    assert f'job="{job["job_name"]}"' in alerts
    mounted = {volume.split(":")[1] for volume in SERVICES["prometheus"]["volumes"]}
    assert {f"/etc/prometheus/{file}" for file in read["rule_files"]} <= mounted


def test_grafana_asks_for_a_password_and_shows_the_dashboard() -> None:
    grafana = SERVICES["grafana"]
    variables = grafana["environment"]
    assert variables["GF_SERVER_PROTOCOL"] == "https"
    assert variables["GF_SECURITY_ADMIN_PASSWORD__FILE"].startswith("/run/headrace/watching/")
    assert not [name for name in variables if name.startswith("GF_AUTH")]
    mounted = dict(volume.split(":")[1::-1] for volume in grafana["volumes"])
    home = variables["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    dashboard = json.loads((ROOT / mounted[home]).read_text(encoding="utf-8"))
    provider = yaml.safe_load((WATCHING / "dashboards.yml").read_text(encoding="utf-8"))["providers"][0]
    assert home.startswith(provider["options"]["path"] + "/")
    (source,) = yaml.safe_load((WATCHING / "datasource.yml").read_text(encoding="utf-8"))["datasources"]
    assert source["type"] in {entry["query"] for entry in dashboard["templating"]["list"]}
    assert source["url"] == "http://prometheus:9090"
    assert "monitoring" in set(grafana["networks"]) & set(SERVICES["prometheus"]["networks"])
    assert "default" not in grafana["networks"]


def test_the_image_copies_what_there_is() -> None:
    stages = (ROOT / "services/Dockerfile").read_text(encoding="utf-8").split("\nFROM ")
    for line in "\n".join(stages).splitlines():
        if line.startswith("COPY ") and "--from" not in line:
            for source in line.split()[1:-1]:
                assert source.startswith("--") or (ROOT / source).exists(), source
    assert len([stage for stage in stages if stage.startswith("base AS ")]) == 2


INITS = {name for name in SERVICES if name.startswith("init-")}
COMMANDS = [name for name, entry in SERVICES.items() if "build" in entry and name not in INITS]


@pytest.mark.parametrize("service", COMMANDS)
def test_a_command_and_its_options_exist(
    service: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    for variable, value in SERVICES[service].get("environment", {}).items():
        monkeypatch.setenv(variable, value)
    there = tmp_path / "there"
    there.write_text("")  # files that `compose_init` makes
    words = SERVICES[service]["command"]
    name, *arguments = ["worker", *words] if service == "worker" else words
    arguments = [str(there) if word.startswith("/run/headrace/") else word for word in arguments]
    typer.main.get_command(build(name)).commands[name].make_context(name, arguments)


def test_the_scripts_are_those_that_compose_asks_for() -> None:
    asked = {SERVICES[name]["command"][0] for name in INITS if "build" in SERVICES[name]}
    assert asked == {"secrets", "token"}
    text = (ROOT / "services/compose_init.sh").read_text(encoding="utf-8")
    assert all(f"\n{step})\n" in text for step in asked)
    for script in (ROOT / "services").glob("*.sh"):
        assert subprocess.run(["sh", "-n", script], check=False).returncode == 0
        assert script.stat().st_mode & 0o111


def test_the_worker_on_gpus_shares_what_clients_of_mps_need() -> None:
    found = yaml.safe_load((ROOT / "services/compose_gpu.yml").read_text(encoding="utf-8"))
    worker = found["services"]["worker"]
    assert worker["volumes"] == [f"mps:{WELL_KNOWN}"], "where a worker that is root has its control daemon"
    assert "mps" in found["volumes"]
    assert f"mkdir -m 755 {WELL_KNOWN}" in (ROOT / "services/Dockerfile").read_text(encoding="utf-8"), (
        "the user that trials run as enters it"
    )
    assert worker["ipc"] == "host"
