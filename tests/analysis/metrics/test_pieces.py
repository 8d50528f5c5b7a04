"""What a proxy collected, and what an engine sent at once, by the arrivals of the chunks alone."""

import tracemalloc

import numpy as np
import pytest

from tailgauge_analysis.metrics import pieces
from tailgauge_analysis.reading.chunks import GapRanges

MS = 1e6
PACE_MS = 8.0


def judged(answers, tokens=None, event_bytes=150.0):
    """`collected` of answers, each given by the arrival of its chunks in ms."""
    sizes = np.array([len(at) - 1 for at in answers])
    gaps = np.concatenate([np.diff(at) for at in answers]) * MS
    chunks = sizes + 1
    return pieces.collected(
        gaps, sizes, np.asarray(chunks if tokens is None else tokens, float), chunks * event_bytes
    )


def collected(made, event_bytes, buffer_bytes, *, offset=400.0):
    """Arrivals behind a proxy that passes on each time its buffer is full, the rest at the end."""
    bytes_at = offset + np.cumsum(np.full(len(made), event_bytes))
    full_at = [made[min(len(made) - 1, int(np.searchsorted(bytes_at, end)))]
               for end in np.ceil(bytes_at / buffer_bytes) * buffer_bytes]  # fmt: skip
    return np.minimum(np.array(full_at), made[-1])


EVEN = np.arange(100) * PACE_MS


@pytest.mark.parametrize("share", [0.02, 0.5, 1.0])
@pytest.mark.parametrize(
    "arrivals",
    [
        collected(EVEN, 130, 4096), collected(EVEN, 280, 4096), collected(EVEN, 130, 16384), collected(EVEN, 1500, 4096),
        np.ceil((EVEN + 1) / 200) * 200,  # passed on every 200 ms
        np.linspace(791.9, 792.0, 100), np.full(100, 792.0), np.full(12, 96.0),
        np.repeat([0, 792.0], [1, 99]),
        np.repeat([600, 640, 680, 720.0], 25),  # TCP's slow start over a long way
    ],
)  # fmt: skip
def test_a_stream_that_a_proxy_collected_is_seen(arrivals, share):
    """Whether few of a run's answers are buffered, half, or all."""
    answers = [arrivals if i < share * 50 else EVEN + i for i in range(50)]
    size = (
        1500.0
        if len(np.unique(arrivals)) > 30
        else 280.0
        if len(np.unique(arrivals)) == 7
        else 130.0
    )
    buffered, _ = judged(answers, event_bytes=size)

    assert buffered.tolist() == [i < share * 50 for i in range(50)]


def test_no_healthy_stream_was_buffered():
    """Slow or fast, uneven, in bursts of speculative decoding, short, of several tokens per chunk, beside other models."""
    rng = np.random.default_rng(5)
    drafts = np.r_[
        1, rng.integers(1, 5, 40)
    ]  # tokens of each step; the first comes with the prompt's
    healthy = [
        EVEN, EVEN[:10], EVEN * 30, EVEN / 10, np.cumsum(rng.exponential(8, 100)), np.cumsum(rng.lognormal(2, 1.5, 100)),
        np.repeat(np.arange(41) * 25.0, drafts) + rng.uniform(0, 0.01, drafts.sum()),
        np.arange(3) * 100.0,
    ]  # fmt: skip
    healthy = [np.sort(at) for at in healthy]
    for beside in ([], [EVEN * 8] * 30, [EVEN / 16] * 30):
        buffered, at_once = judged(
            healthy + beside, [*map(len, healthy[:-1]), 300, *map(len, beside)]
        )

        assert not buffered.any()
        assert not at_once.any()


def test_what_came_at_one_moment_has_no_pace():
    buffered, at_once = judged(
        [np.array([5.0]), np.full(4, 5.0), np.array([5.0, 13.0])], [20, 20, 2]
    )

    assert at_once.tolist() == [True, True, False]
    assert not buffered.any()


@pytest.mark.slow
def test_proxies_of_any_kind_differ_from_targets_of_any_kind(sampling):
    """Uneven streams of any pace, direct and behind buffers of any size; events of any length."""
    runs, rng = sampling(4, 200, 2000)
    missed = 0
    wrong = 0
    for _ in range(runs):
        event_bytes, size = rng.uniform(90, 700), 4096 * 2 ** rng.integers(0, 4)
        gaps = rng.lognormal(np.log(rng.uniform(2, 80)), rng.uniform(0, 1), 300)
        made = np.cumsum(gaps)
        answers = [
            made,
            collected(made, event_bytes, size),
            np.ceil(made / 250) * 250 if gaps.mean() < 40 else made[:1],
        ]
        buffered, _ = judged(answers, event_bytes=event_bytes)
        wrong += buffered[0]
        missed += not buffered[1]
        missed += gaps.mean() < 40 and not buffered[2]

    assert wrong <= 0.002 * runs
    assert missed <= 0.01 * 2 * runs


# --- passed on by time, or by piece -------------------------------------------------------------------------------


def made_by_engine(rng, n, pace_ms, unevenness):
    """Times of the chunks of an answer as the engine makes them."""
    shape = 1 / max(unevenness, 1e-3) ** 2
    return np.cumsum(np.r_[rng.uniform(50, 300), rng.gamma(shape, pace_ms / shape, n - 1)])


def at_ticks(rng, made, period_ms):
    """Arrivals behind a proxy that passes on at the ticks of a clock, and what is left at the end."""
    phase = rng.uniform(0, period_ms)
    return np.minimum(
        (np.floor((made - phase) / period_ms) + 1) * period_ms + phase, made[-1] + 0.02
    )


def after_first(_rng, made, period_ms):
    """Arrivals behind a proxy that passes on so long after the first chunk that waits."""
    arrived = np.empty_like(made)
    start = 0
    while start < len(made):
        end = np.searchsorted(made, made[start] + period_ms, "right")
        is_last = end == len(made)
        arrived[start:end] = (
            min(made[start] + period_ms, made[-1] + 0.02) if is_last else made[start] + period_ms
        )
        start = end
    return arrived


def by_piece(rng, made, sizes):
    """Arrivals behind a proxy that passes on pieces of so many chunks."""
    arrived = np.empty_like(made)
    start = 0
    while start < len(made):
        end = min(len(made), start + rng.integers(sizes[0], sizes[1] + 1))
        arrived[start:end] = made[end - 1]
        start = end
    return arrived


def received(rng, arrived):
    """The same with what differs between the segments of a network."""
    times, piece = np.unique(arrived, return_inverse=True)
    return np.maximum.accumulate((times + np.abs(rng.normal(0, 0.08, len(times))))[piece])


PROXIES = {
    "every 20 ms": (at_ticks, 20.0),
    "every 50 ms": (at_ticks, 50.0),
    "every 100 ms": (at_ticks, 100.0),
    "20 ms after the first": (after_first, 20.0),
    "100 ms after the first": (after_first, 100.0),
    "2 chunks": (by_piece, (2, 2)),
    "2 or 3 chunks": (by_piece, (2, 3)),
}
ENDS = {"short": (8, 25), "medium": (40, 120), "long": (200, 300)}


@pytest.mark.parametrize("length", ENDS)
@pytest.mark.parametrize("name", PROXIES)
def test_where_a_proxy_makes_the_pace_wrong_it_is_seen(name, length, sampling):
    """Any pace and unevenness of the engine. The pace of what is not flagged is right within 7% in the median.

    Below one chunk a period there are no pieces: only the end, which is not held, comes early.
    """
    runs, rng = sampling(9, 6, 40)
    proxy, period = PROXIES[name]
    wrong = 0
    for _ in range(runs):
        pace_ms = rng.uniform(2, 60)
        unevenness = rng.choice([0.0, 0.1, 0.5])
        answers = []
        errors = []
        for n in rng.integers(*ENDS[length], 40):
            made = made_by_engine(rng, n, pace_ms, unevenness)
            arrived = proxy(rng, made, period)
            answers.append(received(rng, arrived))
            errors.append((arrived[-1] - arrived[0]) / (made[-1] - made[0]) - 1)
        buffered, at_once = judged(answers)
        unmarked = np.array(errors)[~buffered & ~at_once]
        wrong += len(unmarked) > 2 and abs(np.median(unmarked)) > 0.07

    assert wrong <= 0.05 * runs


@pytest.mark.parametrize("name", ["every 50 ms", "2 or 3 chunks", "20 ms after the first"])
def test_a_proxy_on_half_of_the_way_is_seen_there_alone(name):
    rng = np.random.default_rng(2)
    proxy, period = PROXIES[name]
    made = [made_by_engine(rng, n, 9.0, 0.1) for n in rng.integers(60, 150, 40)]
    answers = [received(rng, proxy(rng, at, period) if i % 2 else at) for i, at in enumerate(made)]
    buffered, _ = judged(answers)

    assert buffered[1::2].mean() > 0.9
    assert not buffered[::2].any()


def joined_by_chance(rng, made, share):
    """Arrivals of chunks of which some share the packet of the next one."""
    arrived = made.copy()
    for i in range(len(made) - 2, -1, -1):
        if rng.random() < share:
            arrived[i] = arrived[i + 1]
    return arrived


def in_steps(rng, n, step_ms, drafts):
    """Speculative decoding: the first token alone, then up to so many a step."""
    times = np.cumsum(np.r_[100.0, rng.gamma(50, step_ms / 50, n)])
    return np.repeat(times, np.r_[1, rng.integers(1, drafts + 1, n)])[:n]


HEALTHY = {
    "even": lambda rng, n, pace: made_by_engine(rng, n, pace, 0.0),
    "uneven": lambda rng, n, pace: made_by_engine(rng, n, pace, 1.0),
    "packets that join": lambda rng, n, _: joined_by_chance(
        rng, made_by_engine(rng, n, 1.0, 0.0), 0.3
    ),
    "a network that jitters": lambda rng, n, pace: np.maximum.accumulate(
        made_by_engine(rng, n, pace, 0.1) + rng.exponential(0.5 * pace, n)
    ),
    "two tokens a step": lambda rng, n, pace: in_steps(rng, n, pace, 2),
    "four tokens a step": lambda rng, n, pace: in_steps(rng, n, pace, 4),
}


@pytest.mark.parametrize("length", ENDS)
@pytest.mark.parametrize("name", HEALTHY)
def test_no_engine_passes_for_a_proxy(name, length, sampling):
    runs, rng = sampling(6, 4, 40)
    for _ in range(runs):
        pace_ms = rng.uniform(2, 60)
        answers = [
            received(rng, HEALTHY[name](rng, n, pace_ms)) for n in rng.integers(*ENDS[length], 40)
        ]
        buffered, _ = judged(answers)

        assert buffered.mean() <= 0.025


def test_what_the_client_read_late_is_not_laid_to_a_proxy():
    """Chunks every 20 ms, read every 50 ms: each but the last of a read may have come since the read before."""
    rng = np.random.default_rng(1)
    answers = [at_ticks(rng, made_by_engine(rng, 60, 20.0, 0.1), 50.0) for _ in range(30)]
    gaps = np.concatenate([np.diff(at) for at in answers]) * MS
    sizes = np.full(30, 59)
    together = np.flatnonzero(gaps == 0)
    ranges = GapRanges(together, np.full(len(together), 50 * MS), np.ones(len(together), np.bool_))
    by_proxy, _ = pieces.collected(gaps, sizes, sizes + 1.0, 200.0 * (sizes + 1))
    by_client, _ = pieces.collected(gaps, sizes, sizes + 1.0, 200.0 * (sizes + 1), ranges)

    assert by_proxy.all()
    assert not by_client.any()


@pytest.mark.slow
def test_the_pieces_of_a_large_run_are_never_held_together(monkeypatch):
    """They take 24 bytes a gap, the gaps themselves 8."""
    monkeypatch.setattr("tailgauge_analysis.reading.chunks.BLOCK", 10_000)
    sizes = np.full(2000, 100)
    gaps_ns = np.random.default_rng(3).exponential(8 * MS, sizes.sum())
    tokens = np.full(len(sizes), 101.0)
    tracemalloc.start()
    pieces.collected(gaps_ns, sizes, tokens, tokens * 150)
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()

    assert peak < 2.5 * gaps_ns.nbytes
