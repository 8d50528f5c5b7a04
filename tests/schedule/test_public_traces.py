"""Samples of public traces, where they are at hand: replayed with every row at its own time and size.

Azure LLM inference 2023 (CC-BY-4.0, Patel et al.), BurstGPT (CC-BY-4.0, HPMLL), Mooncake (Apache-2.0, kvcache-ai).
"""

import csv
import json
from datetime import datetime

import numpy as np
import pytest

from tailgauge.patterns.table import Traffic
from tailgauge.schedule.schedule import plan
from tailgauge.schedule.settings import Arrival, Trace

FILES = {
    "azure2023_conv_head2000.csv": ("azure", 0, 2000, 0),
    "burstgpt1_head400.csv": ("burstgpt", 10**9, 400, None),
    "burstgpt3_head12.csv": ("burstgpt", 10**9, 12, None),
    "mooncake_conversation_head500.jsonl": ("mooncake", 3 * 10**9, 500, 0),
}


@pytest.fixture
def trace(checkout):
    """Path of a sample; skips where the samples are not at hand."""

    def find(name):
        path = checkout.parent / "shared" / "traces" / name
        if not path.is_file():
            pytest.skip("the public samples are not beside the checkout")
        return path

    return find


def rows_of(path, kind):
    """Rows of the file, read here a second time: seconds since the first, prompt, output."""
    text = path.read_text(encoding="utf-8")
    if kind == "mooncake":
        rows = [json.loads(line) for line in text.splitlines()]
        return [(r["timestamp"] / 1e3, r["input_length"], r["output_length"]) for r in rows]
    rows = list(csv.DictReader(text.splitlines()))
    if kind == "burstgpt":
        found = [
            (float(r["Timestamp"]), int(r["Request tokens"]), int(r["Response tokens"]))
            for r in rows
        ]
    else:
        found = []
        for r in rows:
            day, _, clock = r["TIMESTAMP"].partition(" ")
            hours, minutes, seconds = clock.split(":")
            since = (
                datetime.fromisoformat(day).toordinal() * 86_400
                + int(hours) * 3600
                + int(minutes) * 60
            )
            found.append(
                (since + float(seconds), int(r["ContextTokens"]), int(r["GeneratedTokens"]))
            )
    return [(at - found[0][0], prompt, output) for at, prompt, output in found]


@pytest.mark.parametrize("name", FILES)
def test_each_emitted_row_has_the_time_and_sizes_of_the_file(trace, name):
    kind, tick_ns, count, dropped = FILES[name]
    path = trace(name)
    arrival = Arrival(process="trace", trace=Trace(file=str(path)))
    schedule = plan(arrival, {"chat": Traffic()}, 86_400 * 7, 1)
    sent = [row for row in rows_of(path, kind) if row[1] > 0 and row[2] > 0]
    facts = schedule.trace
    late = schedule.at_ns / 1e9 - np.array([at for at, _, _ in sent])

    assert facts["format"] == kind
    assert facts["rows_read"] == count == facts["emitted"] + sum(facts["dropped"].values())
    assert dropped is None or sum(facts["dropped"].values()) == dropped
    assert facts["resolution_s"] == tick_ns / 1e9
    assert schedule.prompt_tokens.tolist() == [prompt for _, prompt, _ in sent]
    assert schedule.output_tokens.tolist() == [output for _, _, output in sent]
    assert late.min() >= -1e-4  # of the float sum above; the plan itself is exact
    assert late.max() <= max(tick_ns / 1e9, 1e-4)


def test_prefixes_of_the_mooncake_sample_are_kept(trace):
    path = trace("mooncake_conversation_head500.jsonl")
    schedule = plan(
        Arrival(process="trace", trace=Trace(file=str(path))), {"chat": Traffic()}, 3600, 1
    )
    ids = [json.loads(line)["hash_ids"] for line in path.read_text(encoding="utf-8").splitlines()]

    assert [row.source["blocks"] for row in schedule.slice(0, 10**13)] == ids
