"""What a gateway adds: what was planted is found with its interval, and of the same endpoint twice nothing is stated."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from run_folders.dry_runs import dry_run_of
from run_folders.loaded import LoadedRun

from tailgauge.rows import schema
from tailgauge.scenario.model import load as load_scenario
from tailgauge_analysis.comparing import gateway
from tailgauge_analysis.comparing.alternating import in_blocks
from tailgauge_analysis.comparing.comparison import MEASURED, Comparison, headline
from tailgauge_analysis.comparing.effect import INCONCLUSIVE, MS, NO_WORSE, SAME, Effect
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.report.report import make
from tailgauge_analysis.text.section import COMPLETED, FAIL, PASS, Result

PAIRS, BLOCK_S = 10, 5.0


def run(out, seed=2, pairs=PAIRS, **sets):
    keys = {
        "seed": seed, "stages.duration_s": 5 + 2 * pairs * BLOCK_S, "stages.warmup_s": 5.0, "crossover.block_s": BLOCK_S,
        "traffic.*.output_tokens": 20, "arrival.rate_per_s": 10.0, "simulated.gateway.delay_sigma": 0.0,
        **{key.replace("__", "."): value for key, value in sets.items()},
    }  # fmt: skip
    return dry_run_of("gateway", list(keys.items()), out)


def found_in(frames):
    evidence = LoadedRun(frames).evidence
    stage = evidence.without_slow_readers
    return in_blocks(evidence.frames, stage)


def row(found, title, p=None):
    return next(one for one in found.rows if (one.title, one.p) == (title, p))


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    return run(tmp_path_factory.mktemp("gateway"), simulated__gateway__delay_ms=5.0)


@pytest.fixture
def frames(folder):
    """The run's frames, for a test to change what came through the gateway."""
    return load([folder])


def through(frames):
    return frames.attempts["traffic"] == "gateway"


def of_seeds(tmp_path, seeds, **sets):
    """What is found with each seed; the check of stability may refuse a run in twenty."""
    found = [found_in(load([run(tmp_path, seed, **sets)])) for seed in seeds]
    found = [one for one in found if one.rows]
    print(f"{len(found)} of {len(seeds)} have an answer")
    assert len(found) >= 0.9 * len(seeds) - 1
    return found


@pytest.mark.slow
def test_a_planted_delay_is_in_its_interval(tmp_path, full_size):
    seeds = range(100, 140 if full_size else 103)
    found = of_seeds(tmp_path, seeds, simulated__gateway__delay_ms=5.0)

    for title in (gateway.HEADERS, gateway.TTFT, gateway.E2E):
        for p in (0.5, 0.95):
            rows = [row(one, title, p) for one in found]
            inside = sum(one.low <= 5.0 <= one.high for one in rows)
            print(title, p, f"{inside} of {len(rows)}")
            assert inside >= (0.85 * len(rows) if full_size else 2)
    assert all(row(one, gateway.TTFT, 0.5).is_different for one in found)
    assert all(one.sentence.startswith("The gateway adds ") for one in found)
    assert all(
        one.sentence.endswith(
            "passes chunks on one by one, and reports the same number of prompt tokens"
        )
        for one in found
    )


@pytest.mark.slow
def test_of_the_same_endpoint_under_both_names_nothing_is_stated(tmp_path, full_size):
    seeds = range(1000, 1200 if full_size else 1004)
    found = of_seeds(tmp_path, seeds, simulated__gateway__delay_ms=0.0, simulated__ttft_sigma=0.4)

    claims = [one.sentence for one in found if any(figure.is_different for figure in one.rows)]
    print(f"{len(claims)} of {len(found)}", *claims, sep="\n")
    assert len(claims) <= (10 if full_size else 1)
    for one in found:
        if one.sentence not in claims:
            waits = [row(one, gateway.TTFT, p) for p in (0.5, 0.99)]
            is_shown = all(wait.verdict == SAME for wait in waits if wait.change is not None)
            start = "shows no change" if is_shown else "shows an inconclusive change"
            assert one.sentence.startswith(
                f"The gateway {start} of TTFT in 10 pairs of blocks (p50 "
            )


@pytest.mark.parametrize(
    ("verdicts", "start"),
    [
        ((SAME, SAME), "shows no change of TTFT"),
        ((SAME, INCONCLUSIVE), "shows an inconclusive change of TTFT"),
        ((NO_WORSE, INCONCLUSIVE), "shows an inconclusive change of TTFT"),
    ],
)
def test_no_change_is_stated_only_where_it_is_shown(verdicts, start):
    """Below eight pairs most intervals are wider than what is asked for."""
    effect = Effect(
        metric="ttft", title="TTFT", scale=MS, threshold=1.0, change=0.0, low=-3.0, high=4.0
    )
    rows = [
        replace(effect, label=label, p=p, verdict=verdict)
        for (label, p), verdict in zip((("p50", 0.5), ("p99", 0.99)), verdicts, strict=True)
    ]

    (text,) = gateway.waits_claims(rows, 5)

    assert (
        text == f"{start} in 5 pairs of blocks (p50 CI -3.00 to 4.00 ms, p99 CI -3.00 to 4.00 ms)"
    )


@pytest.mark.slow
def test_an_answer_that_is_held_back_is_found(tmp_path):
    found = found_in(
        load([run(tmp_path, simulated__gateway__holds=True, simulated__gateway__delay_ms=2.0)])
    )

    assert "holds 100% of the answers back until they end" in found.sentence
    assert row(found, gateway.TTFT, 0.5).change == pytest.approx(192, abs=2)
    assert row(found, gateway.E2E, 0.5).change == pytest.approx(2, abs=1.5)


@pytest.mark.slow
def test_chunks_that_come_in_bunches_are_found(frames):
    evidence = LoadedRun(frames).evidence
    stage = evidence.without_slow_readers
    is_second = np.repeat((stage.requests["traffic"] == "gateway").to_numpy(), stage.gap_counts)
    gaps = np.where(
        is_second & (np.arange(len(is_second)) % 3 > 0), 1000.0, stage.gaps_ns
    )  # two of three come at once

    found = in_blocks(evidence.frames, replace(stage, gaps_ns=gaps))

    assert (
        "passes chunks on in bunches (66" in found.sentence
        or "passes chunks on in bunches (67" in found.sentence
    )
    assert "0% of the direct ones" in found.sentence


@pytest.mark.slow
@pytest.mark.parametrize(
    ("factor", "text"),
    [
        (1.04, "reports 4.0% more prompt tokens"),
        (0.9, "reports 10.0% fewer prompt tokens"),
        (None, "reports no tokens"),
    ],
)
def test_tokens_counted_otherwise_are_found(frames, factor, text):
    attempts = frames.attempts
    for name in ("input_tokens", "output_tokens") if factor is None else ("input_tokens",):
        attempts[name] = attempts[name].astype("float64")
        attempts.loc[through(frames), name] *= np.nan if factor is None else factor

    assert text in found_in(frames).sentence


@pytest.mark.slow
def test_work_that_differs_comes_first(frames):
    frames.attempts["output_tokens"] = frames.attempts["output_tokens"].astype("float64")
    frames.attempts.loc[through(frames), "output_tokens"] *= 1.5

    assert found_in(frames).sentence.startswith(
        "The work is not the same: B (gateway) got 50.0% more output tokens per call. The gateway"
    )


@pytest.mark.slow
def test_errors_added_are_found(frames):
    rows = frames.requests
    some = (rows["traffic"] == "gateway") & (rows["request_id"] // 65536 % 5 == 0)
    rows.loc[some, "ended"] = schema.SERVER_ERROR
    frames.attempts.loc[
        frames.attempts["request_id"].isin(rows.loc[some, "request_id"]), "ended"
    ] = schema.SERVER_ERROR

    sentence = found_in(frames).sentence

    assert "fails " in sentence
    assert "of the requests (0% directly)" in sentence


@pytest.mark.slow
def test_cancellations_that_are_not_passed_on_are_counted_by_the_log_or_the_engines_counter(frames):
    stage = LoadedRun(frames).evidence.without_slow_readers

    def lost_in(frames):
        found = in_blocks(frames, stage)
        return found.rows[-1], found.sentence

    lost, _ = lost_in(frames)
    cancelled = int(lost.why.split()[-1])
    assert lost.b == 0
    frames.server_log["cancelled_at_ns"] = np.nan
    lost, sentence = lost_in(frames)
    assert lost.b == 1
    assert f"does not pass on {cancelled} of {cancelled} cancellations" in sentence

    blind = replace(frames, server_log=frames.server_log.iloc[:0])
    assert lost_in(blind)[0].why.startswith("not known")
    completed = int(frames.attempts["ended"].isin(schema.WITH_ANSWER).sum())
    for more, share in ((3, 3 / cancelled), (-1, None), (10_000, None)):
        blind.run["engine_completed"] = completed + more
        assert lost_in(blind)[0].b == share


@pytest.mark.slow
def test_too_few_pairs_have_no_answer(tmp_path):
    made = make([run(tmp_path, pairs=3)], tmp_path)

    assert made.data["gateway"] is None
    assert "not comparable, 3 pairs of whole blocks" in made.data["result"]["sentence"]


@pytest.mark.slow
def test_the_report_shows_it_in_every_format(folder, tmp_path):
    made = make([folder], tmp_path)

    assert made.data["result"]["sentence"] == made.data["gateway"]["sentence"]
    assert (made.data["crossover"], made.data["gateway"]["a"]) == (None, "direct")
    for text in (made.html.read_text(), made.markdown.read_text()):
        assert "The gateway adds " in text
        assert "time to headers p50" in text


def test_the_objectives_still_decide():
    found = Comparison(
        method=gateway.METHOD, threshold=0.05, verdict=MEASURED, sentence="The gateway adds 1 ms"
    )
    of_run = Result(FAIL, "an objective")

    assert headline(found, of_run).outcome == FAIL
    assert headline(found, replace(of_run, outcome=PASS)).outcome == PASS
    assert headline(found, replace(of_run, outcome=COMPLETED)).outcome == PASS


@pytest.mark.slow
def test_two_targets_that_are_no_gateway_are_compared_as_two_variants(tmp_path):
    folder = run(tmp_path, crossover__gateway=False)
    made = make([folder], tmp_path)

    assert made.data["gateway"] is None
    assert made.data["crossover"]["verdict"]
    attempts = load([folder]).attempts
    assert set(zip(attempts["traffic"], attempts["target"], strict=True)) == {
        ("direct", "main"),
        ("gateway", "second"),
    }


def test_a_gateway_is_called_as_the_target_behind_it_without_its_secrets():
    direct = [
        ("target.model", "m"),
        ("target.url", "http://127.0.0.1:1"),
        ("target.api_key_env", "DIRECT_KEY"),
    ]
    second = load_scenario(
        "gateway", [*direct, ("second_target.url", "http://127.0.0.1:2")]
    ).second_target

    assert second is not None
    assert (second.url, second.model, second.protocol) == ("http://127.0.0.1:2", "m", "openai")
    assert (second.api_key_env, second.headers) == (None, {})
