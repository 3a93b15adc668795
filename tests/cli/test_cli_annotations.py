"""`headrace annotate`, `compare`, and the filters of lists: what is sent, and what is printed."""

import json
from typing import Any

from commands_run import Invoke
from fake_study_service import FakeStudyService
from scripted_study import race


def test_filters_and_orders_are_sent(fake: FakeStudyService, invoke: Invoke) -> None:
    assert invoke("studies", "--since", "7d", "--tag", "a", "--tag", "b", "-f", "-state:failed").code == 0
    [sent] = fake.requests["ListStudies"]
    assert sent.filter == 'tag:"a" tag:"b" created>="7d" -state:failed'
    assert invoke("trials", "digits", "-f", "lr>1e-3", "--sort", "-step").code == 0
    [sent] = fake.requests["ListTrials"]
    assert (sent.filter, sent.order_by) == ("lr>1e-3", "-step")


def test_a_sorted_list_stays_in_the_schedulers_order(fake: FakeStudyService, invoke: Invoke) -> None:
    best_first = [trial["trial"] for trial in json.loads(invoke("trials", "digits", "--json").out)]
    sorted_ = [
        trial["trial"] for trial in json.loads(invoke("trials", "digits", "--sort", "lr", "--json").out)
    ]
    assert sorted_ == list(range(28))
    assert best_first != sorted_


def test_quotes_in_a_tag_stay_one_value(fake: FakeStudyService, invoke: Invoke) -> None:
    invoke("studies", "--tag", 'a" -state:failed \\')
    [sent] = fake.requests["ListStudies"]
    assert sent.filter == 'tag:"a\\" -state:failed \\\\"'
    refused = invoke("studies", "--tag", "")
    assert refused.code == 2
    assert "--tag is empty" in refused.err
    assert len(fake.requests["ListStudies"]) == 1


def test_annotate_sends_and_prints(fake: FakeStudyService, invoke: Invoke) -> None:
    done = invoke("annotate", "digits", "--tag", "paper", "--untag", "old", "--note", "figure 3")
    assert done.out.splitlines() == ["Study digits: paper", "figure 3"]
    done = invoke("annotate", "digits", "7", "--tag", "odd", "--json")
    assert json.loads(done.out) == {"tags": ["odd"], "note": ""}
    first, second = fake.requests["Annotate"]
    assert (first.name, list(first.add_tags), list(first.remove_tags)) == (
        "studies/digits",
        ["paper"],
        ["old"],
    )
    assert first.note == "figure 3"
    assert second.name == "studies/digits/trials/7"
    assert not second.HasField("note")
    assert first.request_id != second.request_id != ""
    assert invoke("annotate", "digits").out.splitlines() == ["Study digits: no tags"]
    assert len(fake.requests["Annotate"]) == 2


def test_compare_prints_studies_side_by_side(fake: FakeStudyService, invoke: Invoke) -> None:
    fake.add(race("other"))
    lines = invoke("compare", "digits", "other", "digits").out.splitlines()
    assert [line.split()[0] for line in lines if line][:3] == ["STUDY", "digits", "other"]
    found: list[dict[str, Any]] = json.loads(invoke("compare", "digits", "other", "--json").out)
    assert [study["name"] for study in found] == ["digits", "other"]
    assert all(study["best"]["score"] for study in found)
    assert invoke("compare", "digits", "digits").code == 2
    assert "no study" in invoke("compare", "digits", "none").err.lower()
