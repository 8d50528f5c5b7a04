"""run.json as a model: it has every key of the file, and no value of a wrong type gets through."""

import json

import pytest
from analysis.reading.damages import JUNK

from tailgauge_analysis.reading.run_json import RunJson, WorkerJson


def test_a_key_of_run_json_is_a_field_with_a_description(write):
    run = json.loads((write(n=10) / "run.json").read_text(encoding="utf-8"))

    assert set(run) <= set(RunJson.model_fields)
    assert [key for key in run["workers"][0] if key not in WorkerJson.model_fields] == []
    for model in (RunJson, WorkerJson):
        assert [key for key, field in model.model_fields.items() if not field.description] == []


@pytest.mark.parametrize("model", [RunJson, WorkerJson])
def test_a_value_of_another_type_counts_as_absent(model):
    for value in JUNK:
        read = model.model_validate(dict.fromkeys(model.model_fields, value))
        for key, field in model.model_fields.items():
            assert type(getattr(read, key)) in {
                type(value),
                float,
                type(field.get_default(call_default_factory=True)),
            }
    assert model.model_validate({"no such key": 1}) == model()


def test_only_the_entries_of_a_list_or_table_that_are_damaged_are_left_out():
    run = RunJson.model_validate(
        {"overrides": ["a=1", 3], "target": {"url": "x", "simulated": True, "n": 1.5}}
    )
    worker = WorkerJson.model_validate(
        {"rows": {"requests": 3, "chunks": "x"}, "unwritten": {"a": 0, "b": 2}}
    )

    assert (run.overrides, run.target) == (["a=1"], {"url": "x", "simulated": True})
    assert (worker.rows, worker.unwritten) == ({"requests": 3}, {"b": 2})


def test_what_a_run_states_of_a_pattern_counts_and_a_damaged_value_does_not():
    tree = {
        "patterns": {
            "fan_out": {"answer": "single"},
            "echo": {"answer": 7, "price_share": 0.5},
            "odd": 3,
        }
    }
    stated = RunJson.model_validate(tree).patterns

    assert {name: (facts.answer, facts.price_share) for name, facts in stated.items()} == {
        "fan_out": ("single", 1.0), "echo": ("single", 0.5),
    }  # fmt: skip
