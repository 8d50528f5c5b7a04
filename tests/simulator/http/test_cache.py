"""The prefix cache over HTTP: usage to the token, races, and lives."""

from concurrent.futures import ThreadPoolExecutor

import pytest
from simulator.http.conftest import named

from tailgauge.simulator.behaviours.tokens import text

ON = ("cache.mode=marked", "cache.minimum_tokens=16")


def request_of(ttl="5m", size=40, tail=5):
    system = [
        {
            "type": "text",
            "text": text(size).decode(),
            "cache_control": {"type": "ephemeral", "ttl": ttl},
        }
    ]
    return {
        "model": "m",
        "max_tokens": 3,
        "system": system,
        "messages": [{"role": "user", "content": text(tail).decode()}],
    }


@pytest.mark.parametrize("times", [(), ("profile=tiny",)])
@pytest.mark.parametrize("ttl", ["5m", "1h"])
def test_the_second_of_two_equal_calls_reads_what_the_first_wrote(serve, times, ttl):
    endpoint = serve(*ON, *times)
    first = endpoint.message("a", **request_of(ttl)).usage
    with endpoint.claude.messages.stream(**request_of(ttl), **named("b")) as stream:
        second = stream.get_final_message().usage
    split = first.cache_creation
    written = (split.ephemeral_5m_input_tokens, split.ephemeral_1h_input_tokens)
    assert written == ((40, 0) if ttl == "5m" else (0, 40))
    assert (
        first.input_tokens,
        first.cache_creation_input_tokens,
        first.cache_read_input_tokens,
    ) == (
        5,
        40,
        0,
    )
    assert (
        second.input_tokens,
        second.cache_creation_input_tokens,
        second.cache_read_input_tokens,
    ) == (
        5,
        0,
        40,
    )
    rows = [endpoint.row(run) for run in ("a", "b")]
    assert [
        (r["cache_reason"], r["cache_read_tokens"], r["cache_created_tokens"]) for r in rows
    ] == [
        ("cold", 0, 40),
        ("hit", 40, 0),
    ]


@pytest.mark.parametrize(
    "times",
    [
        ("ttft_ms=1500",),
        ("profile=tiny", "engine.overhead_ms=0", "engine.step_ms=1500", "engine.replicas=5"),
    ],
)
def test_parallel_cold_calls_all_write(serve, times):
    """The last of them comes before the first has an answer."""
    endpoint = serve(*ON, *times)
    wanted = request_of() | {"max_tokens": 1}
    with ThreadPoolExecutor(5) as pool:
        used = list(pool.map(lambda _: endpoint.message(**wanted).usage, range(5)))
    assert [usage.cache_creation_input_tokens for usage in used] == [40] * 5
    assert sorted(row["cache_reason"] for row in endpoint.server_log()) == [
        "cold",
        "race",
        "race",
        "race",
        "race",
    ]
    assert endpoint.message(**wanted).usage.cache_read_input_tokens == 40


def test_reads_do_not_count_as_input(serve):
    endpoint = serve(*ON, "limits.itpm=600", "limits.itpm_burst=60")
    for _ in range(3):  # 45, then 5 each
        endpoint.message(**request_of())
    assert [row["status"] for row in endpoint.server_log()] == [200] * 3


def test_chat_reads_whole_blocks_and_says_so_in_its_own_way(serve):
    endpoint = serve(
        "cache.mode=automatic", "cache.block_tokens=16", "cache.minimum_tokens=16", "profile=tiny"
    )
    wanted = {"model": "m", "max_tokens": 2, "messages": [{"role": "user", "content": text(40).decode()}]}  # fmt: skip
    used = [endpoint.chat.chat.completions.create(**wanted).usage for _ in range(2)]
    assert [one.prompt_tokens for one in used] == [40, 40]
    assert [one.prompt_tokens_details.cached_tokens for one in used] == [0, 32]


def test_a_call_without_an_answer_fills_the_cache(serve):
    endpoint = serve(*ON, "profile=tiny")
    warm = endpoint.claude.messages.create(**(request_of() | {"max_tokens": 0}))
    assert (warm.content, warm.usage.output_tokens) == ([], 0)
    assert endpoint.message(**request_of()).usage.cache_read_input_tokens == 40
