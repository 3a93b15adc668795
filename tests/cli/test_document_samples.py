"""The output shown in the documents is what the program prints, except where it has "…".

Each block ```` ```output ```` of a page has a proof here, which makes the program print it. Lines may be folded
anywhere.
"""

import io
import re
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import race

sys.path.insert(0, str(Path(__file__).parent.parent / "policies"))

from policy_drive import Driver
from policy_drive import study as policy_study

from headrace.check import render
from headrace.check.lost_files import _lost
from headrace.check.report import CheckReport, Limit, Missing
from headrace.check.snapshot import Kind
from headrace.checkpoints.directory import DirectoryStore
from headrace.checkpoints.errors import StoreUnavailableError
from headrace.cli import scales
from headrace.cli.drain import _begun, _tell
from headrace.cli.importance import show_importance
from headrace.cli.output import Output
from headrace.cli.preview import _show_sizes
from headrace.cli.summary import Summary
from headrace.client import convert
from headrace.client.machines import Worker
from headrace.client.model import (
    BundleSize,
    Importance,
    ParameterImportance,
    PreviewSize,
    ScaleChoice,
    ScaleTried,
    StudyInfo,
    TrialInfo,
    TrialRef,
)
from headrace.client.transfer import Transferred
from headrace.client.transfer_plan import planned
from headrace.errors import HeadraceError
from headrace.spec import AshaPolicy, BestOfSampler, StudySpec, params_to_proto
from headrace.spec.file import parse_study_text
from headrace.v1 import spec_pb2, study_pb2, trial_pb2
from headrace_services.scheduler.core.capacity import Measured, _paying
from headrace_services.scheduler.core.policies import RungCost
from headrace_torch.hdet.stall import Pulse, Seen, stalled

TRANSFER = "docs/how-to/transfer-the-best.md"
ROOT = Path(__file__).resolve().parents[2]
FENCE = re.compile(r"^```(?P<language>\w*)[^\n]*\n(?P<code>.*?)^```$", re.MULTILINE | re.DOTALL)


def samples(page: str) -> list[str]:
    text = (ROOT / page).read_text(encoding="utf-8")
    return [block["code"] for block in FENCE.finditer(text) if block["language"] == "output"]


def pages() -> dict[str, int]:
    documents = [ROOT / "README.md", *(ROOT / "docs").rglob("*.md")]
    found = {str(path.relative_to(ROOT)): len(samples(str(path.relative_to(ROOT)))) for path in documents}
    return {page: count for page, count in found.items() if count}


def is_shown(sample: str, printed: str) -> bool:
    """Whether a sample is part of what was printed."""
    parts = [re.escape(" ".join(part.split())) for part in sample.split("…")]
    return re.search(r"\s?.*?\s?".join(parts), " ".join(printed.split())) is not None


class Printed:
    """What commands print, as in a pipe."""

    def __init__(self) -> None:
        self._file = io.StringIO()
        self.output = Output(stdout=self._file, stderr=self._file)

    @property
    def text(self) -> str:
        return self._file.getvalue()


def of_study(**changes: object) -> StudyInfo:
    script = race("digits")
    return replace(convert.study(script.final.study), **changes)


def of_trial(number: int, **fields: object) -> TrialInfo:
    """A trial of a study, with some fields of its message replaced."""
    trial = race("digits").final.trials[number]
    for name in ("worker", "slots", "score", "score_step", *fields):
        trial.ClearField(name)
    trial.MergeFrom(trial_pb2.Trial(**fields))
    return convert.trial(trial)


def lines(study: StudyInfo, **more: object) -> str:
    return "\n".join(f"{label} {text}" for label, text in Summary(study=study, **more).lines())


def a_priced_pause() -> str:
    """The fourth of ten trials, one rung before the end."""
    driver = Driver(policy_study(AshaPolicy(price_pauses=True, rungs=(1, 2)), max_steps=2))
    cost = RungCost(step_s=120.0, checkpoint_bytes=84 * 10**9, write_s=42.0)
    for other in range(1, 10):
        driver.record(other, other if other < 4 else other + 1.0, cost=cost)
    driver.promote_all()
    driver.record(0, 3.5, cost=cost)
    return str(driver.policy.verdict(0, 0, 0).explanation.sentence)


def a_lost_file() -> str:
    error = "the resumed process fails: FileNotFoundError: [Errno 2] No such file or directory: 'best.json'"
    return render(CheckReport(script="train.py", steps=3, restores=2, missing=_lost(["best.json"], 1, error)))


def a_check_without_time() -> str:
    return render(
        CheckReport(
            script="train.py",
            steps=14,
            restores=5,
            metrics=("val_loss",),
            last_step=14,
            budget=100,
            limit=Limit.TIME,
            enough_s=660,
            restored_after=(1, 2, 8, 12, 13),
            not_restored_after=(3, 5, 6, 9, 11),
            params={"lr": 0.05},
        )
    )


def a_rank_that_loses_something() -> str:
    finding = "Generator `noise` is not tracked: the random numbers repeat"
    found = Missing(kind=Kind.RNG, finding=finding, remedy="t.track(noise=noise)", step=1, ranks=(1,))
    return render(CheckReport(script="train.py", steps=3, restores=2, world_size=2, missing=(found,)))


def a_stalled_job() -> str:
    trains = Pulse(
        beat=9, moves=1, state="trains", step=9, sync=1, place="train.py:97 in train", blocked=True
    )
    waits = replace(trains, state="waits", step=10, sync=2)
    seen = {
        rank: Seen(pulse=pulse, silent_s=0.0, still_s=99.0)
        for rank, pulse in ((0, trains), (1, waits), (2, trains))
    }
    return stalled(seen, bound_s=61.0) or ""


def sizes_of_a_preview() -> str:
    printed = Printed()
    resources = SimpleNamespace(by=SimpleNamespace(parameter="batch_size"))
    sizes = [
        PreviewSize(gpus=gpus, gpu_milli=0, cpus=0, trials=trials)
        for gpus, trials in ((1, 19), (2, 17), (4, 24))
    ]
    _show_sizes(SimpleNamespace(sizes=sizes), SimpleNamespace(resources=resources), printed.output)
    return printed.text


def bundles_of_a_study() -> str:
    trials, why = _paying(
        {members: Measured(turns=10**6, time_s=time_s) for members, time_s in ((16, 0.04), (32, 0.079))}
    )
    size = BundleSize(device="NVIDIA H100", apart="", trials=trials, reason=why, member_bytes=0)
    return lines(of_study(bundle_sizes=(size,)))


def a_drained_worker() -> str:
    printed = Printed()
    trials = tuple(TrialRef("digits", number) for number in (3, 4, 6, 7))
    worker = Worker(
        name="node-7", connected=True, slots=(), labels={}, last_seen=None, version="0.1.0", draining="a user"
    )
    printed.output.line(_begun(SimpleNamespace(name=worker.name, connected=True, trials=trials)))
    running = trial_pb2.TRIAL_STATE_RUNNING
    moved = [
        (
            TrialRef("digits", number),
            of_trial(
                number, state=running, termination_reason=0, step=step, worker="workers/node-2", slots=[slot]
            ),
        )
        for number, step, slot in ((3, 6, 0), (4, 5, 1))
    ]
    _tell(moved, printed.output)
    return printed.text


def a_transfer() -> str:
    sampler = BestOfSampler(study="small")
    spec = of_study().spec
    objective = spec.objective.model_copy(update={"metric": "loss"})
    changes = {"sampler": sampler, "objective": objective, "baseline": None}
    study = of_study(name="small-target", spec=spec.model_copy(update=changes))
    completed = trial_pb2.TERMINATION_REASON_COMPLETED
    trials = tuple(
        of_trial(
            number,
            state=trial_pb2.TRIAL_STATE_TERMINATED,
            termination_reason=completed,
            source=source,
            score=score,
            score_step=6,
        )
        for number, (source, score) in enumerate(((8, 0.0833632), (7, 0.0833632 - 5.6748e-06), (3, 0.086255)))
    )
    return lines(study, transferred=Transferred(study, trials))


def asked_of_a_planner(model: str, cluster: str) -> StudySpec:
    """The study of the page, with another model or cluster. A planner of its own answers."""
    (text,) = [
        block["code"]
        for block in FENCE.finditer((ROOT / TRANSFER).read_text(encoding="utf-8"))
        if block["code"].startswith("name: small\n")
    ]
    (plan,) = [
        block["code"].partition("plan: ")[2]
        for block in FENCE.finditer((ROOT / TRANSFER).read_text(encoding="utf-8"))
        if "plan: {model: llama3-8b, cluster: h100-8," in block["code"]
    ]
    plan = plan.replace("llama3-8b", model).replace("h100-8", cluster).strip()
    text = text.replace(
        "resources: {gpus: 8}}", f"resources: {{gpus: 8, processes: per_slot}}, plan: {plan}}}"
    )
    _, spec = parse_study_text(text, folder=ROOT)
    return planned(spec)


def a_plan() -> str:
    spec = asked_of_a_planner("llama3-8b", "h100-8")
    assert spec.transfer is not None
    assert spec.transfer.plan is not None
    return f"plan {spec.transfer.plan.answer}"


def a_plan_that_does_not_fit() -> str:
    with pytest.raises(HeadraceError) as caught:
        asked_of_a_planner("llama3-70b", "h100-80g-8")
    return f"error: {caught.value}"


def a_chosen_scale() -> str:
    tried = tuple(
        ScaleTried(scale=scale, kendall=kendall, regret=0.0, agrees=kendall > 0.8)
        for scale, kendall in ((16, 0.51111), (8, 0.51111), (4, 0.82222))
    )
    choice = ScaleChoice(scale=4, study="gpt-scale", least_kendall=0.8, most_regret=0.070991, tried=tried)
    surrogate = SimpleNamespace(pilot=SimpleNamespace(study="gpt-scale"), scale_by="")
    study = SimpleNamespace(spec=SimpleNamespace(surrogate=surrogate, space={}), scale_choice=choice)
    return "\n".join(f"{label} {text}" for label, text in scales.lines_of(study))


def the_importance_of_parameters() -> str:
    printed = Printed()
    parameters = tuple(
        ParameterImportance(parameter=name, share=share, trials=trials)
        for name, share, trials in (("lr", 0.71, 35), ("momentum", 0.18, 21), ("width", 0.11, 35))
    )
    found = Importance(metric="val_loss", step=3, trials=35, parameters=parameters, reason="")
    show_importance([found], printed.output)
    return printed.text


PROOFS: dict[str, list[Callable[[], str]]] = {
    "docs/explanation/policies.md": [a_priced_pause],
    "docs/how-to/check-resume.md": [a_lost_file, a_check_without_time, a_rank_that_loses_something],
    "docs/how-to/explore-learning-rates.md": [a_stalled_job],
    "docs/how-to/fuse-trials.md": [bundles_of_a_study],
    "docs/how-to/multi-gpu-trials.md": [sizes_of_a_preview],
    "docs/how-to/drain-and-remove-workers.md": [a_drained_worker],
    TRANSFER: [a_transfer, a_plan_that_does_not_fit, a_plan],
    "docs/how-to/tune-a-small-copy.md": [a_chosen_scale],
    "docs/how-to/which-parameters-matter.md": [the_importance_of_parameters],
}
BY_COMMANDS = {"docs/how-to/several-machines.md": 1, "docs/how-to/extend-a-study.md": 1}


def test_each_sample_has_a_proof() -> None:
    assert pages() == {page: len(proofs) for page, proofs in PROOFS.items()} | BY_COMMANDS


@pytest.mark.parametrize(
    ("page", "place"), [(page, place) for page, proofs in PROOFS.items() for place in range(len(proofs))]
)
def test_a_sample_is_what_is_printed(page: str, place: int) -> None:
    sample, printed = samples(page)[place], PROOFS[page][place]()
    assert is_shown(sample, printed), f"{page} shows\n{sample}\nand printed is\n{printed}"


def test_a_store_that_is_away(fake: FakeStudyService, invoke: Invoke, tmp_path: Path) -> None:
    store = DirectoryStore(tmp_path)
    store.expected = "3f0c51a9" * 4
    with pytest.raises(StoreUnavailableError) as caught:
        store.require()
    trouble = str(caught.value).replace(store.url, "file:///mnt/store")
    fake.workers.append(study_pb2.WorkerStatus(name="workers/gpu-7", connected=True, trouble=trouble))
    printed = invoke("doctor").out
    (sample,) = samples("docs/how-to/several-machines.md")
    assert is_shown(sample, printed), printed


def test_a_trial_that_keeps_its_result(fake: FakeStudyService, invoke: Invoke) -> None:
    script = race("digits")
    objective = script.final.study.spec.objective
    objective.metric, objective.scope = "loss", spec_pb2.SCOPE_LAST
    trial = trial_pb2.Trial()
    trial.CopyFrom(next(one for one in script.final.trials if one.number == 1))
    del script.final.trials[:]
    trial.parameters.CopyFrom(params_to_proto({"lr": 0.01}))
    del trial.rung_results[:]
    trial.rung_results.add(milestone=27, value=0.5673)
    trial.earlier_ends.add(
        reason=trial_pb2.TERMINATION_REASON_COMPLETED,
        step=27,
        budget=27,
        score=0.5673,
        score_step=27,
        metrics={"loss": 0.5673},
    )
    trial.counted_end, trial.step, trial.score, trial.score_step = 0, 29, 0.5673, 27
    trial.metrics["loss"] = 0.6
    trial.state, trial.termination_reason = (
        trial_pb2.TRIAL_STATE_TERMINATED,
        trial_pb2.TERMINATION_REASON_FAILED,
    )
    trial.detail = "ValueError: Tried to step 28 times. The specified number of total steps is 27"
    script.final.trials.append(trial)
    fake.add(script)
    printed = invoke("trials", "digits").out
    (sample,) = samples("docs/how-to/extend-a-study.md")
    assert is_shown(sample.partition("\n")[2], printed), printed
