"""Alternating blocks in one run: a planted difference is found, two equal variants do not differ."""

import pytest
from run_folders.dry_runs import dry_run_of


@pytest.fixture(scope="module")
def report(tmp_path_factory):
    """The report of a dry run of two variants, B with so many output tokens."""
    from tailgauge_analysis.report.report import make

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
    assert whole["low"] <= 700 / 215 - 1 <= whole["high"] or whole["change"] == pytest.approx(2.3, abs=0.3)
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
