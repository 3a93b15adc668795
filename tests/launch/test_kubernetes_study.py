"""`headrace launch kubernetes` as a process, with real workers: a kubelet of this test runs what the Jobs say."""

import base64
import subprocess
from contextlib import ExitStack
from pathlib import Path

import pytest
import yaml
from fake_api_server import TOKEN, ApiServer, api_server
from launch_site import HEADRACE, LaunchSite, launch_site, process, until

from headrace.launch.kubernetes.manifest import JOINING

pytestmark = [pytest.mark.full, pytest.mark.timeout(900)]


class Kubelet:
    """Gives each pod a node, starts its worker when its secret exists, and says when it has exited."""

    def __init__(self, server: ApiServer, site: LaunchSite, stack: ExitStack) -> None:
        self._server, self._site, self._stack = server, site, stack
        self._running: dict[str, tuple[int, subprocess.Popen[bytes]]] = {}
        self.started = 0

    def turn(self) -> None:
        for name, (seat, worker) in list(self._running.items()):
            if worker.poll() is not None:
                self._server.end(seat, failed=worker.returncode != 0)
                assert worker.returncode == 0, self._log(name).read_text()
                del self._running[name]
        for pod in list(self._server.objects["pods"].values()):
            name, seat = pod["metadata"]["name"], int(pod["metadata"]["labels"]["headrace.io/seat"])
            if pod["status"]["phase"] == "Pending":
                self._server.give_node(seat)
                if self._server.start(seat) is not None:
                    self._start(name, seat)

    def _start(self, name: str, seat: int) -> None:
        spec = self._server.pod_of(seat)["spec"]
        (container,) = spec["containers"]
        (secret,) = [one["secret"]["secretName"] for one in spec["volumes"] if "secret" in one]
        mounted = self._site.root / name
        mounted.mkdir()
        for file, text in self._server.objects["secrets"][secret]["data"].items():
            (mounted / file).write_bytes(base64.b64decode(text))
        args = [
            one.replace("$(POD_NAME)", name).replace(JOINING, str(mounted))
            for one in container["args"]
            if one != "--run-as=trials"  # it needs another user
        ]
        env = {**self._site.env, "HEADRACE_HOME": str(mounted), "KUBERNETES_SERVICE_HOST": "10.0.0.1"}
        line = [*HEADRACE, *args]
        self._running[name] = (seat, self._stack.enter_context(process(line, env, self._log(name))))
        self.started += 1
        assert max(self._server.running.values()) == 1

    def _log(self, name: str) -> Path:
        return self._site.root / f"{name}.log"


def test_a_study_runs_on_pods_that_come_and_go(tmp_path: Path) -> None:
    with api_server() as server, launch_site(tmp_path) as site, ExitStack() as stack:
        file = tmp_path / "kubeconfig"
        content = {
            "current-context": "c",
            "contexts": [{"name": "c", "context": {"cluster": "c", "user": "u", "namespace": "team"}}],
            "clusters": [{"name": "c", "cluster": {"server": server.address}}],
            "users": [{"name": "u", "user": {"token": TOKEN}}],
        }
        file.write_text(yaml.safe_dump(content))
        launch = ["launch", "kubernetes", "--max", "2", "--cpu-slots", "1", "--idle-exit", "5s"]
        launch += ["--image", "worker:1", "--store", (tmp_path / "store").as_uri(), "--interval", "1s"]
        launch += ["--kubeconfig", str(file)]
        shown = yaml.safe_load(site.run(*launch, "--dry-run"))
        assert shown["metadata"]["name"] == "headrace-workers-0"
        assert server.objects["jobs"] == {}
        kubelet = Kubelet(server, site, stack)
        for number in range(2):  # two loops at once
            stack.enter_context(process([*HEADRACE, *launch], site.env, tmp_path / f"launch-{number}.log"))
        seen = site.study(most=2, also=kubelet.turn)
        assert len(seen) == kubelet.started == 2, (tmp_path / "launch-0.log").read_text()
        assert {name.rpartition("-")[0] for name in seen} == {"headrace-workers-0", "headrace-workers-1"}

        def gone() -> bool:
            kubelet.turn()
            return not site.connected()

        until(gone, lambda: "idle workers leave")
