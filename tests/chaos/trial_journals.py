"""Compares what trials recorded themselves with what the scheduler says it stored."""

from pathlib import Path

from cluster_site import journals

from headrace.client.model import Report


def check_journals(reports: list[Report], folder: Path, *, fenced: bool) -> None:
    """Check that every answered report of a trial is stored once. (Later reports of a fenced lease are not.)"""
    written = journals(folder)
    uid = next(iter(written)).split(".")[0]
    stored: dict[str, list[Report]] = {}
    for report in reports:
        stored.setdefault(f"{uid}.{report.trial}.{report.attempt}", []).append(report)
    for lease, lines in written.items():
        known = {report.step: report.metrics["score"] for report in stored.get(lease, [])}
        assert len(known) == len(stored.get(lease, [])), f"{lease}: a report is stored twice"
        missing = [line["step"] for line in lines if line["step"] not in known]
        assert fenced or not missing, f"{lease}: the reports of steps {missing} are lost"
        assert all(known[line["step"]] == line["score"] for line in lines if line["step"] in known)


def check_chain(number: int, reports: list[Report]) -> None:
    """Check that every step has one value, whoever computed it, and that no step is missing."""
    by_step: dict[int, set[float]] = {}
    for report in reports:
        by_step.setdefault(report.step, set()).add(report.metrics["score"])
    assert all(len(values) == 1 for values in by_step.values()), f"trial {number} changed on the way"
    assert sorted(by_step) == list(range(1, max(by_step) + 1))
