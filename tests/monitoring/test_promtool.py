"""Prometheus's own tool checks the metrics, the alert rules, and what raises which alert."""

import os
import shutil
import subprocess
from importlib.resources import as_file, files
from pathlib import Path

import pytest
from prometheus_client import generate_latest

from headrace_services.monitoring.registry import REGISTRY
from headrace_services.scheduler import measures

PROMTOOL = os.environ.get("HEADRACE_PROMTOOL") or shutil.which("promtool")
HERE = Path(__file__).parent

pytestmark = pytest.mark.skipif(PROMTOOL is None, reason="promtool is not installed (Debian: prometheus)")


def promtool(*arguments: str, given: bytes = b"") -> str:
    """Run it; it must succeed."""
    assert PROMTOOL is not None
    done = subprocess.run([PROMTOOL, *arguments], input=given, capture_output=True, check=False, timeout=60)
    said = (done.stdout + done.stderr).decode()
    assert done.returncode == 0, said
    return said


def test_the_metrics_follow_the_rules() -> None:
    measures.CYCLES.labels("committed").observe(0.01)
    assert promtool("check", "metrics", given=generate_latest(REGISTRY)).strip() == ""


def test_the_alert_rules_are_sound() -> None:
    with as_file(files("headrace_services.monitoring") / "alerts.yaml") as rules:
        assert "SUCCESS" in promtool("check", "rules", str(rules))


def test_the_alerts_are_raised_when_they_should(tmp_path: Path) -> None:
    with as_file(files("headrace_services.monitoring") / "alerts.yaml") as rules:
        (tmp_path / "alerts.yaml").write_bytes(rules.read_bytes())
    (tmp_path / "alerts_test.yaml").write_bytes((HERE / "alerts_test.yaml").read_bytes())
    assert "SUCCESS" in promtool("test", "rules", str(tmp_path / "alerts_test.yaml"))


def test_what_compose_gives_prometheus_is_sound(tmp_path: Path) -> None:
    given = HERE.parents[1] / "services/compose_monitoring/prometheus.yml"
    (tmp_path / "prometheus.yml").write_bytes(given.read_bytes())
    with as_file(files("headrace_services.monitoring") / "alerts.yaml") as rules:
        (tmp_path / "alerts.yaml").write_bytes(rules.read_bytes())
    said = promtool("check", "config", str(tmp_path / "prometheus.yml"))
    assert "1 rule files found" in said
    assert "is valid prometheus config file" in said
