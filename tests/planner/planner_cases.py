"""Ten plans of eight models that the real parsers of both targets check."""

from functools import cache

from headrace_services.planner import asking
from headrace_services.planner.asking import Options
from headrace_services.planner.modes import FULL
from headrace_services.planner.plan import Plan
from headrace_services.planner.search import Search

CASES: list[tuple[str, str, Options]] = [
    ("gpt3-175b", "a100-64", Options(batch=64)),
    ("gpt3-175b", "a100-64", Options(batch=64, schedule="interleaved", chunks=2, attention="selective")),
    ("llama3-70b", "h100-64", Options(batch=128)),
    ("mixtral-8x7b", "h100-32", Options(batch=64)),
    ("deepseek-141b", "ascend910-128", Options(batch=512)),
    ("gpt3-13b", "a100-8", Options(batch=64, schedule="zero-bubble")),
    ("llama3-70b", "h100-64", Options(batch=64, sequence=8192, overlap="all", gradients="bf16")),
    ("mixtral-8x22b", "h100-64", Options(batch=64, overlap="gradients,optimizer")),
    ("deepseek-v2", "h100-128", Options(batch=256)),
    ("llama3-8b", "a100-8", Options(batch=32, usable_memory=0.6, zero=2)),
]
NAMES = [f"{number}-{model}-{said.schedule}" for number, (model, _, said) in enumerate(CASES)]


@cache
def planned(number: int) -> Plan:
    found = Search(asking.request(*CASES[number])).run(FULL).plan
    assert found is not None
    return found
