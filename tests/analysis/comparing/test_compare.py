"""`tailgauge compare`: what it says of pairs of runs, and which runs it will not compare."""

import copy
import json
from dataclasses import replace

import numpy as np
import pytest
from click.testing import CliRunner

from tailgauge.cli.main import cli
from tailgauge.errors import RunDataError, UsageError
from tailgauge.thresholds import FEWEST_PAIRS
from tailgauge_analysis.comparing.comparability import facts_of
from tailgauge_analysis.comparing.effect import judge
from tailgauge_analysis.comparing.pairs import compare, report, weigh
from tailgauge_analysis.comparing.run_summary import (
    QUANTILES,
    RunFigure,
    RunSummary,
    primary,
    summarize,
)
from tailgauge_analysis.reading import run_record
from tailgauge_analysis.report.markdown import markdown
from tailgauge_analysis.report.terminal import terminal
from tailgauge_analysis.stats.proportions import proportion
from tailgauge_analysis.stats.quantiles import TOO_FEW, quantiles

VARIANT = "traffic.chat.hedge.policy"
METRICS = ("ttft_sched", "tpot")
PAIRS = 8
N = 150


@pytest.fixture(scope="module")
def two(synthetic, tmp_path_factory):
    """Two run folders, variants A and B, with their TTFTs in ms."""
    root, ttft = tmp_path_factory.mktemp("two"), np.random.default_rng(1).lognormal(5, 0.3, N)
    folders = []
    for name, factor, policy in (("a", 1.0, "off"), ("b", 1.2, "fixed")):
        scenario = {"traffic": {"chat": {"hedge": {"policy": policy, "delay_ms": 400}}}}
        spec = {
            "n": N,
            "warmup_s": 0.0,
            "chunks": 2,
            "parts": 1,
            "offsets_ns": (0,),
            "scenario": scenario,
        }
        folders.append(
            synthetic.write(root / name, ttft_ms=ttft * factor, run_id=f"run-{name}", **spec)
        )
    return folders, ttft


@pytest.fixture
def records(two):
    """The records of 8 pairs of runs: A1 B1 A2 B2 ..."""
    sides = [run_record.read([folder])[0] for folder in two[0]]
    out = [copy.deepcopy(side) for _ in range(PAIRS) for side in sides]
    for i, record in enumerate(out):
        record["seed"] = i // 2
    return out


def experiment(factor=1.2, failed=0, pairs=PAIRS):
    """Blocks one after the other, a minute each, B first in every second pair; B's TTFT is `factor` times A's, noise aside."""
    out = []
    for pair in range(pairs):
        shared = np.random.default_rng(pair).lognormal(5, 0.3, N)
        for b in (0, 1):
            place = 2 * pair + (b != pair % 2)
            noise = np.random.default_rng([pair, b]).normal(1, 0.01, N)
            ttft = shared * (1 + place / 100) * noise * (factor if b else 1.0)
            ttft[: failed * b] = np.inf
            out.append(block_of(ttft, f"run-{pair}{'ab'[b]}", pair, place * 60.0))
    return out


def block_of(ttft, name, seed, began):
    tpot = np.full(N, 10.0)
    return summary_of({"ttft_sched": ttft, "tpot": tpot}, name, seed, began)


def summary_of(values, name, seed, began):
    """A run with these values of its metrics in ms."""
    is_answered = np.isfinite(next(iter(values.values())))
    known = {
        (metric, q.p): q
        for metric, of in values.items()
        for q in quantiles(of, QUANTILES)
        if q.mark != TOO_FEW
    }
    known["answered", None] = proportion(is_answered)
    return RunSummary(
        run_id=name,
        started_at="",
        began=began,
        ended=began + 58,
        seconds=50.0,
        offered=len(is_answered),
        dry_run=False,
        seed=seed,
        verdict="VALID",
        reason="",
        work={},
        e2e_p99_s=0.5,
        primary=("ttft_sched", 0.95),
        figures=tuple(
            RunFigure(
                metric=metric,
                p=p,
                n=q.n,
                value=finite(q.value),
                low=finite(q.low),
                high=finite(q.high),
            )
            for (metric, p), q in known.items()
        ),
        facts={},
    )


def finite(value):
    return None if value is None or np.isinf(value) else float(value)


def weighed(records, runs, allow=(VARIANT,), threshold=0.05):
    runs = [
        replace(run, facts=facts_of(record), primary=primary(record["scenario"], METRICS))
        for run, record in zip(runs, records, strict=False)
    ]
    return report(weigh(runs, allow, threshold, METRICS))


def row(made, metric="ttft_sched", label="p50"):
    return next(r for r in made.data["rows"] if (r["metric"], r["label"]) == (metric, label))


def test_a_slower_variant_is_found_with_its_effect(records):
    made = weighed(records, experiment())
    p50 = row(made)

    assert (made.exit_code, made.data["verdict"]) == (1, "worse")
    assert p50["low"] < 0.2 < p50["high"]
    assert p50["b"] / p50["a"] - 1 == pytest.approx(p50["change"], abs=1e-5)
    assert (p50["verdict"], p50["worse_in"], p50["pairs"]) == ("worse", PAIRS, PAIRS)
    assert p50["p_value"] < p50["p_family"] < 0.001
    assert next(r["label"] for r in made.data["rows"]) == "p95"  # what decides
    assert [d["key"] for d in made.data["differs"] if d["between_variants"]] == [VARIANT]
    assert row(made, "tpot")["verdict"] == "no difference"
    assert row(made, "answered", "")["verdict"] == "no difference"


def test_the_other_way_round_it_is_better(records):
    made, there = weighed(records, experiment(1 / 1.2)), weighed(records, experiment(1.2))

    assert (made.exit_code, made.data["verdict"]) == (0, "better")
    assert np.log1p(row(made)["change"]) + np.log1p(row(there)["change"]) == pytest.approx(
        0, abs=0.02
    )


def unequal(seed, factor, sizes, pairs=FEWEST_PAIRS):
    """Blocks of `sizes` requests; every metric of B is `factor` times A's, and differs by some noise between pairs."""
    rng = np.random.default_rng(seed)
    out = []
    for pair in range(pairs):
        common = rng.normal(0, 0.1)
        for b, n in enumerate(sizes):
            values = {
                m: np.exp(rng.normal(5 + common, 0.6, n)) * (factor if b else 1.0) for m in METRICS
            }
            place = 2 * pair + (b != pair % 2)
            out.append(summary_of(values, f"r{pair}{b}", pair, place * 60.0))
    return out


@pytest.mark.slow
def test_the_fewest_pairs_find_what_is_five_times_slower_in_every_row(records):
    for seed in range(20):
        made = weighed(records, unequal([seed, 21], 5.0, (400, 400)))

        assert made.data["verdict"] == "worse"
        assert {r["verdict"] for r in made.data["rows"] if r["metric"] != "answered"} == {"worse"}


@pytest.mark.slow
def test_equal_variants_are_called_different_in_at_most_one_of_twenty(records):
    called = [
        weighed(records, unequal([seed, pairs], 1.0, (300, 300), pairs)).data["verdict"]
        for pairs in (6, 8)
        for seed in range(100)
    ]

    assert sum(verdict in {"worse", "better"} for verdict in called) <= 10


@pytest.mark.slow
def test_few_requests_of_runs_of_unequal_size_are_not_compared(records):
    """p95 of 61 requests is a higher rank than that of 600: B would be 5% and more better."""
    small, large = (
        row(weighed(records, unequal(5, 1.0, (n, 10 * n))), label="p95") for n in (61, 200)
    )

    assert (small["change"], small["counts"]) == (None, False)
    assert small["why"] == "too few requests for runs of unequal size: a run has 61"
    assert large["change"] is not None


@pytest.mark.parametrize(
    ("more", "named"),
    [
        (1.05, "5.0% more output tokens per call"),
        (1.005, ""),
        (0.9, "10.0% fewer output tokens per call"),
    ],
)
@pytest.mark.slow
def test_unequal_work_is_named_before_any_difference(records, more, named):
    """Half a per cent is none, nor are prompts that differ by chance."""
    rng = np.random.default_rng(9)

    def work(i, _b):
        tokens = 200 * (more if i % 2 else 1.0)
        return {"work": {"output tokens": tokens, "prompt tokens": 80 * rng.lognormal(0, 0.1)}}

    made = weighed(records, changed(experiment(), work))

    begin = f"The work is not the same: B got {named}. " if named else ""
    assert made.result.sentence.startswith(f"{begin}B is worse")
    assert made.data["unequal"] == ([named] if named else [])


@pytest.mark.slow
def test_the_objective_decides_and_its_power_is_stated(records):
    for record in records:
        record["scenario"]["slo"] = {"pace": "tpot p50 < 50ms"}
    made = weighed(records, unequal(3, 1.0, (300, 300), 8))
    first = made.data["rows"][0]
    shown = next(text for text in made.result.details if "decides" in text)

    assert (first["metric"], first["label"]) == ("tpot", "p50")
    assert (
        shown
        == f"TPOT p50 decides the comparison: 8 pairs detect a change of {first['smallest'] * 100:+.1f}% or more in 8 of 10 repetitions"
    )
    few = weighed(records, unequal(3, 1.0, (300, 300), 3))
    assert any(
        "decides the comparison: 6 pairs would detect a change of +" in text
        for text in few.result.details
    )
    found = [
        weighed(records, unequal([seed, 7], 1 + first["smallest"], (300, 300), 8)).data["rows"][0][
            "verdict"
        ]
        for seed in range(60)
    ]
    assert found.count("worse") >= 40


def test_equal_variants_do_not_differ(records):
    made = weighed(records, experiment(1.0))

    assert (made.exit_code, made.data["verdict"], made.result.outcome) == (
        0,
        "no difference",
        "PASS",
    )
    assert made.result.sentence == "No difference of 5% or more between A and B"


def test_the_threshold_is_an_option(records):
    assert weighed(records, experiment(), threshold=0.5).data["verdict"] == "no difference"


def test_a_quantile_with_too_few_requests_is_not_compared(records):
    p99 = row(weighed(records, experiment()), label="p99")

    assert (p99["verdict"], p99["change"], p99["low"], p99["p_value"]) == (None, None, None, None)
    assert "too few requests" in p99["why"]


def test_two_measured_runs_of_four_are_not_shown_as_a_and_b(records):
    """A1 and A2 have a p99, B1 and B2 have too few requests for it."""
    values = np.random.default_rng(3).lognormal(5, 0.3, 2000)
    runs = []
    for place, n in enumerate((2000, 150, 2000, 150)):
        metrics = {"ttft_sched": values[:n], "tpot": np.full(n, 10.0)}
        runs.append(summary_of(metrics, f"run-{place}", place // 2, place * 60.0))
    p99 = row(weighed(records, runs), label="p99")

    assert p99["why"] == "too few requests in a run"
    assert [p99[name] for name in ("a", "b", "a_interval", "b_interval")] == [None] * 4


def test_a_quantile_among_failures_of_one_variant_is_inconclusive(records):
    made = weighed(records, experiment(1.0, failed=N // 10))
    answered = row(made, "answered", "")

    assert made.exit_code == 1
    assert (
        row(made, label="p95")["why"]
        == "has no value in 8 of 16 runs: too many requests have no complete answer"
    )
    assert row(made, label="p95")["verdict"] == "inconclusive"
    assert (answered["verdict"], answered["change"]) == ("worse", pytest.approx(-0.1))


def test_two_single_runs_are_no_experiment(records):
    made = weighed(records, experiment(pairs=1))
    text = terminal(made, None, 80)
    side = row(made)

    assert (made.exit_code, made.data["verdict"]) == (3, "not comparable")
    assert "have one run each" in text
    assert "cannot be distinguished from drift" in " ".join(text.split())
    assert made.sections[0].tables[0].rows[0][3].interval
    assert row(made)["p_value"] is row(made)["low"] is row(made)["verdict"] is None
    assert side["a_interval"][0] < side["a"] < side["a_interval"][1]


def test_fewer_than_six_pairs_are_shown_and_not_decided(records):
    made = weighed(records, experiment(pairs=FEWEST_PAIRS - 1))

    assert (made.exit_code, made.data["verdict"]) == (3, "not comparable")
    assert [change > 0 for change in row(made)["changes"]] == [True] * (FEWEST_PAIRS - 1)
    assert row(made)["low"] is None
    assert "5 pairs" in made.data["against"][0]


def changed(blocks, change):
    return [replace(one, **change(i, one)) for i, one in enumerate(blocks)]


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (lambda i, _b: {"began": i // 2 + 99.0 * (i % 2), "ended": i // 2 + 99.0 * (i % 2) + 1}, "did not follow each other"),
        (lambda i, b: {"began": b.began - (i == 3)  * 60, "ended": b.ended - (i == 3) * 60}, "at the same time"),
        (lambda _i, _b: {"began": None}, "does not record when it began"),
        (lambda i, _b: {"verdict": "INVALID", "reason": "rows are lost"} if i == 5 else {}, "run-2b is INVALID: rows are lost"),
        (lambda _i, _b: {"dry_run": True, "seed": 1}, "repeats itself"),
    ],
)  # fmt: skip
def test_what_is_no_experiment_gets_no_verdict(records, change, remark):
    made = weighed(records, changed(experiment(), change))

    assert (made.exit_code, made.data["verdict"]) == (3, "not comparable")
    assert remark in made.data["against"][0]
    assert row(made)["p_value"] is None


@pytest.mark.parametrize(
    ("change", "remark"),
    [
        (lambda _i, _b: {}, "20 or more"),
        (lambda _i, _b: {"seed": 1}, "same seed, so the same prompts"),
        (lambda i, _b: {"began": 60.0 * i, "ended": 60.0 * i + 58}, "A came first in every pair"),
        (lambda _i, _b: {"e2e_p99_s": 20.0}, "16 of 16 runs are shorter than 5 times"),
    ],
)
def test_remarks_for_the_reader(records, change, remark):
    made = weighed(records, changed(experiment(), change))

    assert any(remark in text for text in made.data["remarks"])
    assert made.data["verdict"] == "worse"


def test_degraded_runs_degrade_the_measurement(records):
    made = weighed(records, changed(experiment(), lambda _i, _b: {"verdict": "DEGRADED"}))

    assert (made.measurement.verdict, made.exit_code) == ("DEGRADED", 1)
    assert made.measurement.sentence.startswith("16 of 16 runs DEGRADED")


def test_dry_runs_need_no_order(records):
    blocks = changed(experiment(), lambda _i, _b: {"dry_run": True, "began": None, "ended": None})

    assert weighed(records, blocks).data["verdict"] == "worse"


@pytest.mark.parametrize(
    ("key", "value", "remark", "allow"),
    [
        ("schema_version", 2, "schema, schema_version: 1 in A, 2 and 1 in B", "schema"),
        (
            "master",
            {"host": "h2"},
            "hosts, master.host: loadgen in A, h2 and loadgen in B",
            "hosts",
        ),
        (
            "versions",
            {"tailgauge": "9"},
            "versions, tailgauge: 0.1.0 in A, 9 and 0.1.0 in B",
            "versions",
        ),
        (
            "seed",
            99,
            "seed, seed: 0 and 1 and 2 and more in A, 99 and 1 and 2 and more in B",
            "seed",
        ),
    ],
)
def test_unlike_runs_are_refused_unless_allowed(records, key, value, remark, allow):
    records[1][key] = value
    refused = weighed(records, experiment())

    assert (refused.exit_code, refused.data["verdict"], refused.data["rows"]) == (
        3,
        "not comparable",
        [],
    )
    assert f"{remark}. To allow this difference: --allow {allow}" in refused.data["against"]
    assert weighed(records, experiment(), [VARIANT, allow]).data["verdict"] == "worse"


def test_another_target_is_refused_unless_it_is_the_variant(records):
    for i, record in enumerate(records):
        record["target"] = {"url": f"http://10.0.0.{i % 2}", "simulated": False}

    assert (
        "target.called: http://10.0.0.0 in A, http://10.0.0.1 in B"
        in (weighed(records, experiment()).data["against"][0])
    )
    assert weighed(records, experiment(), [VARIANT, "target"]).exit_code == 1


LONG = "y" * 100


@pytest.mark.parametrize(
    ("change", "key"),
    [
        (lambda run: run["scenario"]["traffic"]["chat"].update(headers={"x-a": "1"}), "traffic.chat.headers.x-a"),
        (lambda run: run["scenario"]["traffic"]["chat"].update(body={"a": {"b": [1, {"c": 2}]}}), "traffic.chat.body.a.b"),
        (lambda run: run["scenario"]["traffic"]["chat"].update(output="exact"), "traffic.chat.output"),
        (lambda run: run["scenario"].setdefault("target", {}).update(body={"top_k": 4}), "target, target.body.top_k"),
        (lambda run: run["scenario"].setdefault("target", {}).update(headers={"x": {"env": "A"}}), "target, target.headers.x.env"),
        (lambda run: run["scenario"]["traffic"]["chat"].update(body={"a": {}}), "traffic.chat.body.a"),
    ],
)  # fmt: skip
def test_what_a_scenario_adds_to_its_requests_is_work(records, change, key):
    for b in records[1::2]:
        change(b)
    made = weighed(records, experiment())

    assert any(text.startswith(f"{key}: ") for text in made.data["against"]), made.data["against"]


def test_texts_that_differ_behind_what_is_shown_are_different(records):
    for i, record in enumerate(records):
        record["scenario"]["traffic"]["chat"]["body"] = {
            "long": f"{LONG}{i % 2}",
            "list": [LONG, i % 2],
        }
    made = weighed(records, experiment())

    found = [
        one["key"] for one in made.data["differs"] if one["key"].startswith("traffic.chat.body")
    ]
    assert found == ["traffic.chat.body.long", "traffic.chat.body.list"]
    assert all(len(value) < 100 for one in made.data["differs"] for value in (*one["a"], *one["b"]))


def test_ports_of_simulated_endpoints_and_labels_may_differ(records):
    for i, record in enumerate(records):
        record["target"]["url"] = f"http://127.0.0.1:{8000 + i}"
        record["scenario"] |= {"name": f"n{i}", "description": f"d{i}", "slo": {"x": i}}

    assert weighed(records, experiment()).data["verdict"] == "worse"


def test_a_number_is_the_same_however_it_is_written(records):
    records[0]["scenario"]["arrival"]["rate_per_s"] = 50
    records[1]["scenario"]["nothing"] = None

    assert weighed(records, experiment()).data["verdict"] == "worse"


def test_the_variant_must_be_named(records):
    refused = weighed(records, experiment(), [])

    assert refused.exit_code == 3
    assert refused.data["against"] == [
        f"{VARIANT}: off in A, fixed in B. To allow this difference: --allow {VARIANT}"
    ]
    shown = " ".join(terminal(refused, None, 80).split())
    assert shown.count("off in A, fixed in B") == 1, "a reason stands once"
    assert shown.count("--allow") == 1
    assert weighed(records, experiment(), ["traffic.chat"]).exit_code == 1


def test_a_variant_is_the_same_in_all_runs(records):
    records[0], records[1] = records[1], records[0]
    mixed = weighed(records, experiment(), [VARIANT, "seed"])

    assert mixed.exit_code == 3
    assert "a variant must be the same in all its runs" in mixed.data["against"][0]


def test_a_dry_run_is_never_compared_with_a_real_run(records):
    records[0]["dry_run"] = True

    assert "some runs are dry runs" in weighed(records, experiment()).data["against"][0]


@pytest.mark.slow
def test_a_block_holds_the_figures_of_its_run(two):
    (folder, _), ttft = two
    read = summarize(folder, ["ttft_sched"])
    values = [read.figure("ttft_sched", p).value for p in QUANTILES[:2]]

    assert values == pytest.approx(
        np.quantile(ttft, QUANTILES[:2], method="inverted_cdf"), rel=1e-5
    )
    assert read.figure("ttft_sched", 0.99) is None
    assert (read.offered, read.figure("answered", None).value, read.verdict) == (N, 1.0, "VALID")


def test_who_left_and_what_was_open_at_the_end_was_offered_and_not_answered(synthetic, tmp_path):
    """A variant that makes half of its users leave does not answer all that it was offered."""
    ended = {**dict.fromkeys(range(50), "cancelled"), **dict.fromkeys(range(50, 60), "censored")}
    read = summarize(
        synthetic.write(tmp_path / "run", n=100, warmup_s=0.0, chunks=2, ended=ended),
        ["ttft_sched"],
    )

    assert (read.offered, read.figure("answered", None).value) == (100, 0.4)


@pytest.mark.slow
def test_wrong_arguments_are_refused(two, synthetic, tmp_path):
    (a, b), _ = two
    empty = synthetic.write(tmp_path / "empty", n=0, run_id="empty")
    (tmp_path / "nothing").mkdir()
    shared = ("traffic", "stages", "hosts")
    for folders, allow, error, text in (
        ([a, b, empty], (), UsageError, "in pairs"),
        ([a, tmp_path / "nothing"], (), RunDataError, "neither run.json"),
        ([a, b], ("hots",), UsageError, "--allow hots"),
        ([a, b], ("traffic", "arrival", "stages", "pattern"), UsageError, "--allow pattern"),
        ([empty, a], shared, RunDataError, "no request in the steady stage"),
    ):
        with pytest.raises(error, match=text):
            compare(folders, allow)


@pytest.mark.slow
def test_the_command_prints_three_forms_and_exits(two):
    asked = ["compare", *map(str, two[0]), "--allow", VARIANT]
    text, tables, tree = (
        CliRunner().invoke(cli, [*asked, *more]) for more in ([], ["--markdown"], ["--json"])
    )

    assert [made.exit_code for made in (text, tables, tree)] == [3, 3, 3]
    assert text.output.startswith("INVALID  do not use these numbers\n")
    assert "| TTFT since scheduled p50 |" in tables.output
    assert json.loads(tree.output)["exit_code"] == 3
    assert isinstance(
        CliRunner().invoke(cli, [*asked, "--json", "--markdown"]).exception, UsageError
    )


@pytest.mark.slow
def test_markdown_has_every_pair_and_the_terminal_the_changes(records):
    made = weighed(records, experiment())
    text, tables = terminal(made, None, 80), markdown(made)

    assert text.startswith("FAIL  B is worse than A: TTFT since scheduled p95 +")
    assert max(map(len, text.splitlines())) <= 80
    assert "no difference" in text  # the row of TPOT
    assert [f"run-{i}b" in tables for i in range(PAIRS)] == [True] * PAIRS


@pytest.mark.slow
def test_text_of_a_run_stays_text(records):
    for i, record in enumerate(records):
        record["versions"] = {"t": "<script>x</script>\x1b[31m|`a`" if i % 2 else "1"}
    made = weighed(records, experiment(), [VARIANT, "versions"])

    assert "script" in markdown(made)
    assert "<script" not in markdown(made)
    assert "\x1b" not in markdown(made) + terminal(made, None, 80)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("low", "high", "p", "word"),
    [
        (0.06, 0.10, 0.01, "worse"),
        (0.06, 0.10, 0.06, "inconclusive"),
        (0.04, 0.10, 0.01, "inconclusive"),
        (-0.04, 0.04, 0.9, "no difference"),
        (0.01, 0.04, 0.01, "no difference"),
        (-0.10, 0.04, 0.9, "no worse"),
        (-0.10, -0.06, 0.01, "better"),
        (-0.10, -0.06, 0.06, "no worse"),
        (-1.0, 1.0, 0.5, "inconclusive"),
    ],
)
def test_the_verdict_is_decided_on_the_interval(low, high, p, word):
    assert judge(low, high, p, 0.05)[0] == word


@pytest.mark.parametrize(
    ("growth", "verdict"),
    [((None, 4.1), "worse"), ((2.0, None), "better"), ((2.0, 4.1), "inconclusive")],
)
@pytest.mark.slow
def test_a_variant_that_is_not_stable_ends_the_comparison_of_separate_runs(
    records, growth, verdict
):
    blocks = changed(experiment(), lambda i, _b: {"growth_per_s": growth[i % 2]})
    made = weighed(records, blocks)
    invalid = weighed(records, changed(blocks, lambda _i, _b: {"verdict": "INVALID"}))

    assert made.data["verdict"] == verdict
    assert made.result.sentence == "; ".join(
        f"{name} is not stable at this rate: the backlog grows by {size:g} requests/s"
        for name, size in zip("AB", growth, strict=True)
        if size
    )
    assert made.data["rows"] == []
    assert invalid.data["verdict"] == "not comparable"


def test_one_of_many_runs_that_is_not_stable_ends_no_comparison(records):
    blocks = changed(experiment(), lambda i, _b: {"growth_per_s": 4.1 if i == 1 else None})

    assert weighed(records, blocks).data["growth_per_s"] == [None, None]
