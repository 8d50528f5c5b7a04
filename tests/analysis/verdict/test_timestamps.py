"""Counts of timestamps: their populations."""

from tailgauge_analysis.run import Run


def test_first_and_all_chunks_are_of_the_same_calls(write):
    """Those of the steady stage, without the warm-up."""
    stamps = Run([write(n=200, warmup_s=1.0, chunks=7, interval_every=10)]).evidence.stamps

    assert (stamps.first_chunks, stamps.first_intervals) == (150, 15)
    assert stamps.chunks == 150 * 7


def test_legs_of_fan_outs_have_chunks(mixed, tmp_path):
    run = mixed()
    for i in range(20):
        run.request(i * 100, [{"first": 100}])
        legs = [{"first": 100 + leg, "leg": leg} for leg in range(3)]
        run.request(i * 100, legs, traffic="research", answer="join")
    stamps = Run([run.write(tmp_path / "run")]).evidence.stamps

    assert (stamps.first_chunks, stamps.chunks) == (80, 240)
