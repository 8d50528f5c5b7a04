"""Two load curves: planted differences are found, equal ones are not called different, and unequal work comes first."""

import json
from collections import Counter
from dataclasses import replace

import pytest
from analysis.comparing.planted_curves import LOADS, curve, with_latency, written
from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge_analysis.comparing.curve import UNKNOWN, Ends
from tailgauge_analysis.comparing.curves import compare

IDS = ("20261123T120000Z-chat-000a", "20261123T130000Z-chat-000b")


@pytest.fixture
def compared(tmp_path):
    """The report on two curves, with the contents of its report.json."""
    numbers = iter(range(10_000))

    def of(a, b, **keys):
        folder = tmp_path / str(next(numbers))
        files = [
            written(one, folder, run_id) / "report.json"
            for one, run_id in zip((a, b), IDS, strict=True)
        ]
        if keys:
            tree = json.loads(files[1].read_text())
            files[1].write_text(json.dumps({**tree, **keys}))
        return compare(files, 0.05, "x")

    return of


def rows(made):
    return {f"{row['title']} {row['label']}".strip(): row for row in made.data["rows"]}


@pytest.mark.slow
@pytest.mark.parametrize("noise", [0.01, 0.1], ids=["1%", "10%"])
@pytest.mark.parametrize("runs", [3, 8])
def test_equal_curves_are_rarely_called_different(compared, full_size, noise, runs):
    pairs, verdicts, covered, every = 200 if full_size else 40, Counter(), 0, 0
    for seed in range(pairs):
        made = compared(*(curve([side, seed], noise=noise, runs=runs) for side in (0, 1)))
        verdicts[made.data["verdict"]] += 1
        tested = [row for row in made.data["rows"] if row["counts"]]
        covered += sum(row["low"] <= 0 <= row["high"] for row in tested)
        every += len(tested)

    assert verdicts["worse"] + verdicts["better"] <= pairs / 20
    assert covered >= 0.93 * every


@pytest.mark.slow
def test_an_interval_of_a_change_covers_it(compared, full_size):
    pairs, covered = 200 if full_size else 60, 0
    for seed in range(pairs):
        knee = rows(compared(curve([0, seed], runs=8), curve([1, seed], runs=8, capacity=15.0)))[
            "Knee"
        ]
        covered += knee["low"] <= 15 / 19 - 1 <= knee["high"]

    assert covered >= 0.9 * pairs


def test_saturation_is_shown_and_decides_nothing(compared):
    made = compared(curve(1), replace(curve(2), saturation=Ends(1200.0, 1199.0, 1201.0)))
    row = rows(made)["Saturation"]

    assert row["change"] < -0.4
    assert (row["verdict"], row["low"], row["p_family"]) == (None, None, None)
    assert made.data["verdict"] != "worse"


def test_less_capacity_is_worse_and_more_is_better(compared):
    small, large = curve(1, capacity=15.0), curve(2)
    worse, better = compared(large, small), compared(small, large)

    assert (worse.data["verdict"], int(worse.exit_code)) == ("worse", 1)
    assert worse.result.sentence.startswith("B is worse than A: Knee -2")
    assert rows(worse)["TTFT p95 at 6 requests/s"]["change"] > 0
    assert (better.data["verdict"], int(better.exit_code)) == ("better", 0)


def test_the_knee_decides_unless_another_figure_is_worse(compared):
    a = curve(1, noise=0.005)
    slower = curve(2, noise=0.005)
    slower = with_latency(slower, LOADS.index(6.0), "p95", Ends(400.0, 390.0, 410.0))

    made = compared(a, slower)
    assert made.data["verdict"] == "worse"
    assert "TTFT p95 at 6 requests/s +" in made.result.sentence
    assert compared(slower, a).data["verdict"] == "no difference"


def test_more_work_per_call_comes_first(compared):
    made = compared(curve(1), curve(2, tokens=134.4))

    assert made.result.sentence.startswith(
        "The work is not the same: B got 5.0% more output tokens per call. B"
    )
    assert made.data["unequal"] == ["5.0% more output tokens per call"]
    assert compared(curve(1), curve(2, tokens=128.5)).data["unequal"] == []


def test_a_percentile_among_failures_is_worse_than_any_value(compared):
    a = curve(1)
    made = compared(a, with_latency(curve(2), LOADS.index(6.0), "p95", Ends(None, 9000.0, None)))

    row = rows(made)["TTFT p95 at 6 requests/s"]
    assert (row["verdict"], row["change"], row["high"]) == ("worse", None, None)
    assert row["low"] > 10


def test_a_knee_that_was_not_reached_is_compared_as_far_as_it_is_known(compared):
    beyond = replace(curve(1), knee=Ends(None, 24.0, None))
    lost, gained = compared(beyond, curve(2)), compared(curve(2), beyond)

    assert rows(lost)["Knee"]["verdict"] == "worse"
    assert (gained.data["verdict"], rows(gained)["Knee"]["high"]) == ("better", None)
    both = rows(compared(beyond, beyond))
    assert "Knee" not in both or both["Knee"]["verdict"] == "inconclusive"


@pytest.mark.parametrize("value", [5e-324, 1e308])
def test_absurd_numbers_are_no_fault_of_ours(compared, value):
    absurd = replace(
        curve(2), knee=Ends(value, value, value), saturation=Ends(value, value / 2, 1e308)
    )
    row = rows(compared(curve(1), absurd))["Knee"]

    assert (row["verdict"], row["change"]) == ("worse" if value < 1 else "better", None)


def test_other_objectives_leave_the_knee_out(compared):
    made = compared(curve(1), curve(2, bound_ms=500.0))

    assert "Knee" not in rows(made)
    assert (
        "differs: objectives: ttft p95 < 800 ms in A, ttft p95 < 500 ms in B" in made.result.details
    )


def test_latency_is_compared_at_loads_of_both_where_no_backlog_grows(compared):
    made = compared(curve(1, loads=(3, 6, 9, 24)), curve(2, loads=(3.01, 6, 12, 24)))

    assert list(rows(made)) == [
        "Knee",
        "TTFT p95 at 6 requests/s",
        "TTFT p95 at 3 requests/s",
        "Saturation",
    ]


REFUSED = {
    "A is by rate, B by concurrency: measure both by the same": (curve(2, by="concurrency"), {}),
    "one is a dry run, the other is real": (curve(2), {"dry_run": False}),
    "B is INVALID": (curve(2), {"measurement": {"verdict": "INVALID"}}),
}


@pytest.mark.parametrize("why", REFUSED)
def test_what_cannot_be_compared_is_refused(compared, why):
    other, keys = REFUSED[why]
    made = compared(curve(1), other, **keys)

    assert (int(made.exit_code), made.data["against"], made.data["rows"]) == (3, [why], [])


def test_nothing_known_in_common_is_inconclusive(compared):
    bare = replace(curve(1, loads=(2, 4)), knee=UNKNOWN, saturation=UNKNOWN)
    made = compared(bare, replace(curve(2, loads=(3, 5)), knee=UNKNOWN))

    assert (made.data["rows"], int(made.exit_code)) == ([], 5)


def test_the_command_writes_a_page_with_both(tmp_path):
    for seed, run_id in enumerate(IDS):
        written(curve(seed, capacity=19.0 - 4 * seed), tmp_path, run_id)

    done = CliRunner().invoke(cli, ["compare", *IDS, f"--out={tmp_path}"])

    assert done.exit_code == 1
    (page,) = tmp_path.glob("reports/*-compare-*/report.html")
    assert done.stdout.splitlines()[-1] == f"report    {page}"
    assert page.read_text().count('class="plot"') == 4
    printed = CliRunner().invoke(cli, ["compare", *IDS, f"--out={tmp_path}", "--json"])
    assert json.loads(printed.stdout)["verdict"] == "worse"


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        ([IDS[0]], "compare: expected two load curves, A and B: 1 given"),
        ([*IDS, IDS[0]], "compare: expected two load curves, A and B: 3 given"),
        ([IDS[0], "elsewhere"], "elsewhere: no such run folder: `tailgauge runs --out "),
        ([IDS[0], IDS[0]], "are the same curve: give each curve once"),
        (
            [*IDS, "--allow=seed"],
            "--allow and --metric: they do not apply to load curves: omit them",
        ),
    ],
    ids=["one", "three", "no curve", "the same", "allow"],
)
def test_wrong_arguments_are_usage_errors(tmp_path, arguments, expected):
    for seed, run_id in enumerate(IDS):
        written(curve(seed), tmp_path, run_id)

    done = CliRunner().invoke(cli, ["compare", *arguments, f"--out={tmp_path}"])

    assert expected in str(done.exception)
    assert done.exception.exit_code == 2
