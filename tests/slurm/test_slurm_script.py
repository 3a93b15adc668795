"""Templates, scripts and squeue's output: pure."""

import re
import subprocess
from pathlib import Path

import pytest

from headrace.errors import InvalidFieldError
from headrace.launch.decision import Kind
from headrace.launch.engine import EngineError, Stage
from headrace.launch.slurm import queue, script
from headrace.launch.slurm.script import WorkerCommand, filled

GPUS = Kind(slots=4, on_gpu=True, labels={"zone": "eu west"})


def command(**changes: object) -> WorkerCommand:
    given: dict[str, object] = {
        "scheduler": "tls://head:7440",
        "store": "file:///shared/store",
        "kind": GPUS,
        "idle_exit": "10m",
        **changes,
    }
    return WorkerCommand(**given)  # type: ignore[arg-type]


def test_a_site_s_template_is_filled_in() -> None:
    text = "#!/bin/bash\n#SBATCH --gres=gpu:{{ gpus }}\n{{worker}}\n"
    made = filled(text, command(lifetime="4h"))
    assert "#SBATCH --gres=gpu:4\n" in made
    assert "{{" not in made
    last = made.rstrip().splitlines()[-1]
    assert last.startswith("exec headrace worker "), "Slurm's signals reach the worker"
    expected = ("--scheduler=tls://head:7440", "--ephemeral", "--idle-exit=10m", "--lifetime=4h")
    for option in (*expected, "'--label=zone=eu west'"):
        assert option in last


@pytest.mark.parametrize(
    ("template", "said"),
    [
        ("#!/bin/bash\n#SBATCH --gres=gpu:{{gpus}}\n", "has no placeholder {{worker}}"),
        ("#!/bin/bash\n{{worker}}\n", "has no placeholder {{gpus}}"),
        (
            "#!/bin/bash\n{{gpus}} {{worker}} {{partition}}\n",
            "has an unknown placeholder (got {{partition}})",
        ),
        ("{{gpus}}\n{{worker}}\n", "is no batch script"),
    ],
)
def test_a_template_with_a_fault_is_refused_by_name(template: str, said: str) -> None:
    with pytest.raises(InvalidFieldError) as caught:
        filled(template, command())
    assert said in str(caught.value)


def test_all_faults_of_a_template_are_named_at_once() -> None:
    with pytest.raises(InvalidFieldError) as caught:
        filled("{{x}}", command())
    assert len(caught.value.violations) == 4


@pytest.mark.parametrize("default", [script.DEFAULT, script.DEFAULT_GPUS])
def test_the_default_templates_are_valid_shell(default: str, tmp_path: Path) -> None:
    kind = GPUS if "gpus" in default else Kind(slots=2, on_gpu=False)
    path = tmp_path / "job.sh"
    path.write_text(filled(default, command(kind=kind, tokens="/shared/it's here")))
    subprocess.run(["bash", "-n", path], check=True)


def test_the_home_of_each_start_is_a_new_folder_of_the_user_alone(tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    shown = tmp_path / "bin" / "headrace"
    shown.write_text('#!/bin/sh\nwhile [ "$1" != --home ]; do shift; done\nstat -c "%a %n" "$2"\n')
    shown.chmod(0o755)
    env = {"PATH": f"{tmp_path / 'bin'}:/usr/bin:/bin", "TMPDIR": str(tmp_path)}
    env |= {"SLURM_ARRAY_JOB_ID": "12", "SLURM_ARRAY_TASK_ID": "0"}
    said = [subprocess.check_output(["bash", "-c", command().lines], env=env, text=True) for _ in range(2)]
    assert said[0] != said[1]
    assert all(one.startswith(f"700 {tmp_path}/headrace-slurm-12-0-") for one in said)


def test_without_certificates_nothing_waits_for_a_token() -> None:
    assert "--join" not in command().lines
    assert '--join @"$ask.token"' in command(tokens="/shared/tokens").lines


def test_the_drain_fits_into_the_time_that_slurm_s_signal_leaves() -> None:
    assert script.DRAIN_GRACE_S + 10 + 10 < script.SIGNAL_S


def test_a_node_that_does_not_see_the_folder_of_tokens_says_so(tmp_path: Path) -> None:
    lines = command(tokens=str(tmp_path / "elsewhere")).lines
    done = subprocess.run(["bash", "-c", lines], capture_output=True, text=True, check=False)
    assert done.returncode == 1
    assert "this node does not see" in done.stderr
    assert "--folder" in done.stderr


LINES = """\
12|3|R|None|headrace-workers-3
15|0|PD|Resources|headrace-workers-0
14|3|PD|Dependency|headrace-workers-3
16|1|PD|Priority|headrace-other-1
17|2|CG|None|headrace-workers-2
18|4|CA|None|headrace-workers-4
19|N/A|PD|Priority|headrace-workers-5
20|1|PD|Priority|some|job
"""


def test_squeue_s_lines_become_members_oldest_first() -> None:
    found = list(queue.members(LINES, "workers"))
    assert [(member.id, member.seat, member.stage) for member in found] == [
        ("12_3", 3, Stage.RUNNING),
        ("14_3", 3, Stage.PENDING),
        ("15_0", 0, Stage.PENDING),
        ("17_2", 2, Stage.RUNNING),
    ]
    assert found[0].worker == "slurm-12-3"
    assert [member.why for member in found] == ["", "Dependency", "Resources", ""]


def test_a_launch_whose_name_begins_like_another_s_has_its_own_seats() -> None:
    text = "12|3|R|None|headrace-a-b-3\n"
    assert not list(queue.members(text, "a"))
    assert [member.seat for member in queue.members(text, "a-b")] == [3]


def test_a_line_that_cannot_be_read_is_an_error_and_no_empty_cluster() -> None:
    with pytest.raises(
        EngineError, match=re.escape("squeue printed a line that cannot be read: 'slurm_load_jobs'")
    ):
        list(queue.members("slurm_load_jobs\n", "workers"))
