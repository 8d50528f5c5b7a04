"""What a target did against its protocol is counted, and the verdict names it."""

from tailgauge.protocol_violations import MALFORMED_USAGE, VIOLATIONS
from tailgauge_analysis.reading.frames import load
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import ends
from tailgauge_analysis.verdict.distortion import violations

OTHERS = {  # failures that are no violation
    "overloaded_error": "stream_error", "not_json": "client_error", "no_end_mark": "truncated", None: "timeout",
    "target: malformed_event": "server_error", "tcp": "connect_error", MALFORMED_USAGE: "ok",
}  # fmt: skip


def test_every_kind_is_counted_and_other_failures_are_not(mixed, tmp_path):
    run = mixed()
    named = {kind: text for kind, text in VIOLATIONS.items() if kind != MALFORMED_USAGE}
    for number, (kind, ended) in enumerate(
        [*((kind, "stream_error") for kind in named), *OTHERS.items()]
    ):
        run.request(100 * number, [{"ended": ended, "error_type": kind}], ended=ended)
    found, of = violations(load([run.write(tmp_path / "run")]))

    assert sorted(found) == sorted((text, 1) for text in named.values())
    assert of == len(named) + len(OTHERS)


def test_counts_that_are_in_no_figure_leave_a_healthy_run_valid(mixed, tmp_path):
    """They are named where it says how answers ended."""
    usages = (
        {"usage_marks": "input"},
        {"usage_marks": "input,output"},
        {"error_type": MALFORMED_USAGE},
    )
    for number, usage in enumerate(usages):
        run = mixed(run_id=f"20261121T074722Z-mixed-000{number}")
        for request in range(40):
            run.request(100 * request, [{"first": 100, **usage}])
        findings = Run([run.write(tmp_path / str(number))])

        assert not [reason for reason in findings.reasons if reason.check == "protocol"]
        assert sum(findings.result(ends.compute).unused_counts.values()) >= 40


def test_the_verdict_names_the_first_three_kinds(mixed, tmp_path):
    run = mixed()
    kinds = (
        ["compressed"] * 5 + ["framing"] * 4 + ["too_large"] * 3 + ["not_http", "malformed_event"]
    )
    for number, kind in enumerate(kinds):
        run.request(
            100 * number, [{"ended": "stream_error", "error_type": kind}], ended="stream_error"
        )
    run.request(5000, [{"first": 100}])
    (reason,) = [
        one for one in Run([run.write(tmp_path / "run")]).reasons if one.check == "protocol"
    ]

    assert reason.verdict == "DEGRADED"
    assert reason.text == (
        "The target broke its protocol in 14 of 15 attempts: compressed although identity was requested (5), "
        "a broken chunked framing (4), too large to be kept in memory (3), 2 other kinds (2)."
    )


def test_what_went_on_to_its_deadline_far_beyond_the_request_is_named(mixed, tmp_path):
    run = mixed()
    for number, chunks in enumerate((40, 200, 250, 251, 400)):
        attempt = {"first": 100, "chunks": chunks, "ended": "timeout"}
        run.request(100 * number, [attempt], ended="timeout", asked_output_tokens=50)
    frames = load([run.write(tmp_path / "run")])

    assert violations(frames) == (
        [("no end at the deadline, far beyond the requested tokens", 2)],
        5,
    )
