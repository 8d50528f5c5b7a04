"""The sentences and figures that a user reads, and the frame of run.json."""

from __future__ import annotations

import io
import json

import pytest

from tailgauge import quantile_sketch
from tailgauge.live.terminal import Display, figures
from tailgauge.master import run_json
from tailgauge.master.progress import Progress, preflight_failure
from tailgauge.plan import certificate
from tailgauge.rows.schema import SCHEMA_VERSION

URL = "http://127.0.0.1:8000"


def bins(*values):
    out = {}
    for value in values:
        quantile_sketch.add(out, value)
    return out


def seen(ended="connect_error", status=None, error_type=None, message=None):
    return {"ended": ended, "status": status, "error_type": error_type, "message": message}


@pytest.mark.parametrize(("what", "sentence"), [
    (
        seen(error_type="tcp", message="Connection refused"),
        f"target {URL} could not be used (tcp): Connection refused. Is it running, and is the port right?",
    ),
    (
        seen(error_type="dns", message="no address for nowhere"),
        f"target {URL} could not be used (dns): no address for nowhere. Is the host name right?",
    ),
    (
        seen(error_type="tls_certificate", message="certificate not trusted: self-signed certificate"),
        (f"target {URL} could not be used (tls_certificate): certificate not trusted: self-signed certificate. "
        "For a private certificate authority, set target.ca_file to its PEM file"),
    ),
    (
            seen("timeout"),
            f"target {URL} could not be used (timeout). No answer in time: is it running, does a firewall block it?",
    ),
    (seen("timeout", 200), f"target {URL} answered HTTP 200, but the stream ended as timeout."),
    (
        seen("client_error", 404, "not_json", "<html><body>Not\n  Found</body></html>"),
        f"target {URL} answered HTTP 404: Not Found. Is the base URL right, and is the protocol openai?",
    ),
    (
        seen("client_error", 401, "authentication_error", "invalid x-api-key"),
        (f"target {URL} answered HTTP 401: invalid x-api-key. The key was refused. For a self-hosted engine, set "
        "target.api_key_env to the variable with its key"),
    ),
    (seen("server_error", 500, "server_error", "boom"), f"target {URL} answered HTTP 500: boom."),
    (seen("client_error", 400, "x", "Model not found."), f"target {URL} answered HTTP 400: Model not found."),
    (
        seen("truncated", 200, "no_end_mark"),
        f"target {URL} answered HTTP 200, but the stream ended as truncated.",
    ),
    (
        seen("client_error", 200, "not_an_event_stream", "hello"),
        (f"target {URL} answered HTTP 200, but the stream ended as client_error: hello. The response is not an "
        "event stream: are path and protocol right?"),
    ),
])  # fmt: skip
def test_an_unusable_target_is_reported_in_a_sentence_with_what_to_do(what, sentence):
    assert preflight_failure(URL, "openai", what) == sentence


def test_a_targets_long_words_are_cut():
    sentence = preflight_failure(URL, "openai", seen("server_error", 500, None, "x" * 5000))

    assert sentence == f"target {URL} answered HTTP 500: {'x' * 200}...."


def test_a_targets_text_are_reported_without_their_power():
    text = "<b>\x1b[31mno</b>\x1b]0;title\x07 \u202eway\n\x9b2J"

    assert preflight_failure(URL, "openai", seen("server_error", 500, None, text)) == (
        f"target {URL} answered HTTP 500: [31mno ]0;title way 2J."
    )


def test_a_note_cannot_move_the_cursor():
    stream = io.StringIO()
    Display(10, stream).print_line("note: preflight -1 ended as empty: \x1b[2J\x1b[Hgone\r\u202e\nVALID")

    assert stream.getvalue() == "note: preflight -1 ended as empty: [2J[Hgone VALID\n"


def test_the_frame_of_run_json_names_versions_and_the_machine_and_is_plain_json():
    tree = run_json.frame({"run_id": "r"}, "running", ["a note"], [])

    assert tree["schema_version"] == SCHEMA_VERSION
    assert (tree["run_id"], tree["state"], tree["notes"], tree["verdict"]) == (
        "r",
        "running",
        ["a note"],
        None,
    )
    assert {"tailgauge", "python", "kernel", *certificate.PACKAGES} == set(tree["versions"])
    assert "not installed" not in tree["versions"].values()
    assert json.loads(json.dumps(tree)) == tree


# --- live figures -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("ended", "failed"),
    [
        ({}, 0),
        ({"ok": 5, "empty": 1, "cancelled": 2, "rate_limited": 3}, 4),
        ({"ok": 5, "timeout": 2, "server_error": 1, "overloaded": 4}, 7),
    ],
)
def test_requests_that_ended_otherwise_than_well_have_failed_a_last_429_included(ended, failed):
    assert Progress(0, 1, ended=ended).failed == failed


@pytest.mark.parametrize(
    ("progress", "line"),
    [
        (Progress(0, 30), "sent 0  in flight 0  429s 0 attempts  failed 0  VALID so far"),
        (
            Progress(
                9,
                30,
                12_345,
                17,
                0,
                {"ok": 12_000, "rate_limited": 1_300},
                {"ok": 12_000, "rate_limited": 4_100},
                ttft=bins(*[201.4] * 290, *[1234.6] * 10),
            ),
            "sent 12,345  in flight 17  TTFT p50 202 p99 1,224 ms  429s 4,100 attempts  failed 1,300  VALID so far",
        ),
        (
            Progress(9, 30, 10, ttft=bins(*[200.0] * 5, 900.0)),
            "sent 10  in flight 0  TTFT p50 198 max 907 ms  429s 0 attempts  failed 0  VALID so far",
        ),
        (
            Progress(9, 30, 10, ttft=bins(200.0, 900.0)),
            "sent 10  in flight 0  TTFT max 907 ms  429s 0 attempts  failed 0  VALID so far",
        ),
        (
            Progress(9, 30, 5, 0, 3, {"timeout": 1}),
            "sent 5  in flight 0  429s 0 attempts  failed 1  dropped 3  VALID so far",
        ),
        (
            Progress(9, 30, verdict="INVALID", reason="worker 1 is gone"),
            "sent 0  in flight 0  429s 0 attempts  failed 0  INVALID so far: worker 1 is gone",
        ),
    ],
)
def test_the_figures_fit_in_a_line_and_drops_are_shown_only_where_there_are_some(progress, line):
    assert figures(progress) == line


def test_without_a_terminal_there_is_a_plain_line_every_five_seconds():
    stream = io.StringIO()
    display = Display(30, stream)
    for passed in (0.0, 0.3, 4.9, 5.0, 5.2, 31.0):
        display.show(Progress(passed, 30), draining=passed > 30)
    display.print_line("note: something")
    display.conclude(Progress(31.0, 30, 9, verdict="DEGRADED", reason="it stood"))
    lines = stream.getvalue().splitlines()

    assert [line.strip().split("  ")[0] for line in lines[:3]] == [
        "0 s of 30 s",
        "5 s of 30 s",
        "30 s of 30 s",
    ]
    assert [line.endswith("  draining") for line in lines[:3]] == [False, False, True]
    assert lines[3] == "note: something"
    assert lines[4].startswith("drained  sent 9 ")
    assert lines[4].endswith("DEGRADED so far: it stood")


def test_on_a_terminal_there_is_a_bar_that_is_taken_away_at_the_end():
    class Terminal(io.StringIO):
        def isatty(self):
            return True

    stream = Terminal()
    display = Display(30, stream)
    display.show(Progress(15, 30, 100), draining=False)
    display.print_line("note: something")
    display.close()

    assert " 50% |" in stream.getvalue()
    assert "sent 100" in stream.getvalue()
    assert "note: something\n" in stream.getvalue()
    assert stream.getvalue().endswith("\r")
