"""Alternating blocks in one run: a planted difference is found, two equal variants do not differ."""

import pytest
from analysis.comparing.saturated import OFF, ON, scenario
from analysis.comparing.saturated import in_blocks as crossover_of
from run_folders.dry_runs import dry_run_of

from tailgauge_analysis.comparing.alternating import in_blocks
from tailgauge_analysis.report.report import make
from tailgauge_analysis.run import Run

pytestmark = pytest.mark.slow

BOTH = {"plain": OFF, "hedged": ON}


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a dry run of two variants, B with so many output tokens."""

    def crossover(tokens, duration_s=250.0):
        out = tmp_path_factory.mktemp("turns")
        path = out / "turns.toml"
        path.write_text(
            "[target]\nurl = 'simulated'\n[arrival]\nrate_per_s = 12\n"
            f"[stages]\nduration_s = {duration_s}\nwarmup_s = 10\n"
            f"[traffic.plain]\noutput_tokens = 4\n[traffic.other]\noutput_tokens = {tokens}\n"
            "[crossover]\na = 'plain'\nb = 'other'\nblock_s = 15\nwashout_s = 3\n"
            "[simulated]\nttft_ms = 200\nttft_sigma = 0.4\nchunk_gap_ms = 5\n"
        )
        return make([dry_run_of(str(path), [], out)], out)

    return crossover


def row(crossover, metric, label):
    return next(r for r in crossover["rows"] if (r["metric"], r["label"]) == (metric, label))


def test_longer_answers_are_found_and_their_ttft_is_not_blamed(report):
    made = report(104)
    crossover = made.data["crossover"]
    whole, first = row(crossover, "e2e_sched", "p50"), row(crossover, "ttft_sched", "p50")

    assert (crossover["verdict"], crossover["pairs"]) == ("worse", 8)
    assert crossover["verdict"] == whole["verdict"]
    assert whole["low"] <= 700 / 215 - 1 <= whole["high"] or whole["change"] == pytest.approx(
        2.3, abs=0.3
    )
    assert first["verdict"] != "worse"
    assert first["low"] < 0 < first["high"]
    page, text = made.html.read_text(), made.markdown.read_text()
    for shown in ("A/B comparison in alternating blocks", "B (other) is worse than A (plain): "):
        assert shown in page
        assert shown in text


def test_equal_variants_do_not_differ_and_few_pairs_are_not_compared(report):
    crossover = report(4).data["crossover"]
    few = report(4, duration_s=45.0).data["crossover"]

    assert crossover["verdict"] not in {"worse", "better"}
    assert not [r for r in crossover["rows"] if r["verdict"] in {"worse", "better"}]
    assert (few["verdict"], few["pairs"]) == ("not comparable", 1)
    assert few["against"][0].startswith("1 pair of whole blocks")


def test_a_run_without_a_crossover_has_none(made):
    assert made(n=120).data["crossover"] is None


def saturated(folder, rate_per_s, block_s, seed=5, hedges=BOTH, pairs=8, washed=1 / 6):
    """The run folder of a dry run at one replica."""
    path = folder / "saturated.toml"
    path.write_text(
        scenario(seed, rate_per_s, 10 + 2 * pairs * block_s, hedges, crossover_of(block_s, washed))
    )
    return dry_run_of(str(path), [], folder)


def compared(run):
    """Its comparison, without the rest of the report."""
    evidence = Run([run]).evidence
    return in_blocks(evidence.frames, evidence.without_slow_readers)


def test_a_variant_that_the_target_does_not_sustain_is_the_answer_and_no_percentage(tmp_path):
    found = compared(saturated(tmp_path, 13.0, 20.0))

    assert (found.verdict, found.outcome, found.rows) == ("worse", "FAIL", ())
    assert found.growth_per_s[0] is None
    assert found.growth_per_s[1] > 1
    assert found.sentence.startswith("B (hedged) is not stable at this rate: the backlog grows by ")
    assert "%" not in found.sentence


def test_a_run_in_blocks_has_one_result_and_it_is_the_headline(tmp_path):
    made = make([saturated(tmp_path, 4.0, 15.0, pairs=6)], tmp_path)
    crossover, result, text = made.data["crossover"], made.data["result"], made.markdown.read_text()
    (hedging,) = [one for one in made.data["hedging"] if not one["is_control"]]

    assert (crossover["growth_per_s"], crossover["against"]) == ([None, None], [])
    assert result["sentence"].startswith("B (hedged)")
    assert hedging["versus"] is None
    assert "over control" not in text
    assert "Latency since scheduled, failures slowest" not in text


def test_equal_variants_are_stable_and_nothing_is_carried_over(tmp_path_factory, full_size):
    seeds, most = (range(40), 4) if full_size else (range(2), 1)
    equal = {"plain": OFF, "hedged": OFF}
    found = [
        compared(saturated(tmp_path_factory.mktemp("equal"), 11.0, 20.0, seed, equal))
        for seed in seeds
    ]

    assert sum(one.growth_per_s != (None, None) or bool(one.against) for one in found) <= most


def test_what_a_variant_leaves_to_the_next_block_is_no_difference(tmp_path):
    found = compared(saturated(tmp_path, 9.0, 12.0, pairs=16, washed=0.0))

    assert found.growth_per_s == (None, None)
    assert found.verdict == "not comparable"
    assert found.against[0].startswith("each block still shows the block before it: ")


def test_blocks_shorter_than_five_p99_are_refused_with_the_length_they_need(tmp_path):
    found = compared(saturated(tmp_path, 4.0, 3.0, pairs=12))

    assert found.verdict == "not comparable"
    assert found.against[0].startswith(
        "blocks of 3 s are shorter than 5 times the end-to-end p99: set crossover.block_s"
    )


def test_a_run_that_is_shorter_than_a_pair_of_blocks_has_none(tmp_path):
    found = compared(saturated(tmp_path, 4.0, 20.0, pairs=0.7))

    assert (found.pairs, found.growth_per_s) == (0, (None, None))
    assert found.against[0].startswith("0 pairs of whole blocks")
