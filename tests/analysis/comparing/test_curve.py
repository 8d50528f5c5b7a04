"""A load curve comes back from its report.json as it was, and a file that holds none is refused by name and key."""

import json

import pytest
from analysis.comparing.planted_curves import curve, tree_of, with_latency, written

from tailgauge.errors import UsageError
from tailgauge_analysis.comparing.curve import Ends, find, read


def test_a_curve_comes_back_as_it_was(tmp_path):
    of = curve()
    back, tree = read(written(of, tmp_path) / "report.json")

    assert back == of
    assert tree["kind"] == "curve"


def test_a_quantile_among_failures_keeps_its_low_end(tmp_path):
    of = with_latency(curve(), -1, "p99", Ends(float("inf"), 9000.0, float("inf")))
    back, _ = read(written(of, tmp_path) / "report.json")

    assert back.points[-1].latency["ttft"]["p99"] == Ends(None, 9000.0, None)


DAMAGE = {
    "facts.points.1.load: Input should be a valid number": lambda tree: tree["facts"]["points"][1].update(load="9"),
    "facts.points.0.load: Input should be greater than 0": lambda tree: tree["facts"]["points"][0].update(load=0),
    "facts.points.0.meets: Input should be 'PASS'": lambda tree: tree["facts"]["points"][0].update(meets="yes"),
    "facts.points.0.runs": lambda tree: tree["facts"]["points"][0].update(runs="run"),
    "facts.knee: Field required": lambda tree: tree["facts"].pop("knee"),
    "facts.knee.low: Input should be greater than or equal to 0": lambda tree: tree["facts"]["knee"].update(low=-1),
    "facts.by: Input should be 'rate' or 'concurrency'": lambda tree: tree["facts"].update(by="users"),
    "facts.gpus: Input should be greater than 0": lambda tree: tree["facts"].update(gpus=0),
    "facts.points: Tuple should have at least 1 item": lambda tree: tree["facts"]["points"].clear(),
    "facts.points: Tuple should have at most 1000 items": lambda tree: tree["facts"]["points"].extend(tree["facts"]["points"] * 112),
    "facts.points: expected loads in ascending order, each once": lambda tree: tree["facts"]["points"].reverse(),
    "facts: Input should be an object": lambda tree: tree.update(facts=None),
    "kind: expected 'curve', as `tailgauge run curve` writes it, got 'headroom'": lambda tree: tree.update(kind="headroom"),
    "kind: expected 'curve', as `tailgauge run curve` writes it, got none": lambda tree: tree.pop("kind"),
}  # fmt: skip


@pytest.mark.parametrize("expected", DAMAGE)
def test_a_damaged_report_is_refused_with_file_and_key(tmp_path, expected):
    tree = json.loads(json.dumps(tree_of(curve())))
    DAMAGE[expected](tree)
    file = tmp_path / "report.json"
    file.write_text(json.dumps(tree))

    with pytest.raises(UsageError) as refused:
        read(file)

    assert str(refused.value).startswith(f"{file}: {expected}")


@pytest.mark.parametrize(
    ("content", "expected"),
    [("[", "not JSON"), ("[]", "kind: expected"), ('{"kind": NaN}', "NaN is not a number"), ("[" * 50 + "]" * 50, "at most 40 levels")],
)  # fmt: skip
def test_a_file_that_is_no_report_is_refused(tmp_path, content, expected):
    file = tmp_path / "report.json"
    file.write_text(content)

    with pytest.raises(UsageError, match=expected):
        read(file)


def test_a_curve_is_named_by_its_file_its_folder_or_its_run_id(tmp_path):
    folder = written(curve(), tmp_path)
    run = tmp_path / "runs" / "some"
    run.mkdir(parents=True)
    (run / "run.json").write_text("{}")

    file = folder / "report.json"
    assert [find(one, tmp_path) for one in (file, folder, type(file)(folder.name))] == [file] * 3
    assert find(run, tmp_path) is None
    assert find(tmp_path / "none", tmp_path) is None
