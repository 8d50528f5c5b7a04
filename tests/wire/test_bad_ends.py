"""How servers and gateways end a stream badly: none is `ok`. The cases and their sources are in `bad_ends.py`."""

from __future__ import annotations

import re

import pytest
from wire.bad_ends import BAD_ENDS

SOURCE = re.compile(r"[\w.-]+/[\w.-]+#\d+|[\w.-]+/[\w.-]+: \S+|[\w.-]+\.\w+/\S+")


@pytest.fixture(scope="module")
def rows(run_script):
    return run_script("wire/scripts/bad_ends.py")


@pytest.mark.parametrize("name", BAD_ENDS)
def test_a_stream_that_ends_badly_is_no_success(rows, name):
    end, row = BAD_ENDS[name], rows[name]
    error_type = row["error_type"] if end.error_type is None and end.error_text else end.error_type

    assert row["ended"] != "ok"
    assert (row["ended"], row["error_type"]) == (end.ended, error_type)
    assert (row["error_class"], row["stop_reason"]) == (end.error_class, end.stop_reason)
    assert end.error_text in (row["error_body"] or "")
    assert row["status"] == 200


def test_each_names_what_it_was_read_from():
    assert [name for name, end in BAD_ENDS.items() if not SOURCE.match(end.source)] == []


def test_many_servers_and_gateways_are_among_them():
    names = ("vLLM", "SGLang", "TGI", "LMDeploy", "llama.cpp", "Ollama", "LiteLLM", "nginx", "Azure", "OpenRouter", "DeepSeek",
             "Gemini", "Envoy", "Anthropic", "LM Studio", "Portkey")  # fmt: skip

    assert [name for name in names if not any(name in end for end in BAD_ENDS)] == []
