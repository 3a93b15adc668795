"""The reference of the study file names every key, and the same defaults as the code."""

from pathlib import Path

import pytest

from headrace.spec.domains import CategoricalDomain, FloatDomain, IntDomain
from headrace.spec.fuse import Fuse
from headrace.spec.halving import AshaPolicy
from headrace.spec.objective import Constraint, Objective, WarmStart
from headrace.spec.plan import TransferPlan
from headrace.spec.policy import POLICIES
from headrace.spec.resources import Elastic, ElasticGrant
from headrace.spec.sampler import SAMPLERS
from headrace.spec.stopping import MedianPolicy, RungMedianPolicy
from headrace.spec.study import Resources, StudySpec
from headrace.spec.template import TrialTemplate
from headrace.spec.transfer import Transfer
from headrace.spec.until import Until

ROOT = Path(__file__).resolve().parents[2]
TEXT = (ROOT / "docs/reference/study-file.md").read_text(encoding="utf-8")
FRIENDLY = {
    "template": "trial",
    "max_trials": "trials",
    "max_parallel": "parallel",
    "max_steps": "steps",
    "max_retries": "retries",
    "max_early_failures": "early_failures",
    "enqueued": "enqueue",
    "conditions": "when",
    "grace": "grace_s",
    "report_timeout": "report_timeout_s",
    "timeout": "trial_timeout_s",
}
MODELS = {
    "Top level": (StudySpec,),
    "objective": (Objective,),
    "trial": (TrialTemplate,),
    "space": (FloatDomain, IntDomain, CategoricalDomain),
    "sampler": tuple(SAMPLERS.values()),
    "constraints": (Constraint,),
    "warm_start": (WarmStart,),
    "transfer": (Transfer, TransferPlan),
    "until": (Until,),
    "policy": tuple(POLICIES.values()),
    "resources": (Resources,),
    "elastic": (Elastic, ElasticGrant),
    "fuse": (Fuse,),
}


def section(title: str) -> str:
    return TEXT.partition(f"\n## {title}\n")[2].partition("\n## ")[0]


@pytest.mark.parametrize("title", MODELS)
def test_every_key_is_there(title: str) -> None:
    friendly = FRIENDLY if title != "warm_start" else {}  # there `max_trials` is spelled that way
    keys = {friendly.get(name, name) for model in MODELS[title] for name in model.model_fields}
    keys -= {"extended"}  # only the scheduler writes them
    assert [key for key in sorted(keys - {"type", "kind"}) if f"`{key}`" not in section(title)] == []


@pytest.mark.parametrize(
    ("model", "name"),
    [
        *((StudySpec, name) for name in ("max_parallel", "max_retries", "seed", "checkpoints_kept")),
        *((AshaPolicy, name) for name in ("variant", "eta", "brackets", "arrival")),
        *((MedianPolicy, name) for name in ("variant", "completed_only")),
        *((RungMedianPolicy, name) for name in ("tolerance", "min_results")),
        (Resources, "gpus"),
    ],
    ids=str,
)
def test_a_default_is_the_code_s(model: type, name: str) -> None:
    default = str(model.model_fields[name].default)
    key = FRIENDLY.get(name, name)
    rows = [[cell.strip() for cell in line.split("|")] for line in TEXT.splitlines() if line.startswith("|")]
    column = 2 if model in (StudySpec, Resources) else 1  # these tables have the type before the default
    said = [row[row.index(f"`{key}`") + column] for row in rows if f"`{key}`" in row]
    assert said, f"`{key}` is missing"
    assert (
        len([text for text in said if default.lower() in text]) == 1
    )  # two policies may have a key with the same name
