"""Traffic that cannot be is refused with file, key and what was expected."""

import pytest

from tailgauge.errors import Exit, ScenarioError
from tailgauge.scenario.model import load, parse


def chat(**table):
    return {"traffic": {"chat": table}}


HEDGED = {"pattern": "hedged", "hedge": {"policy": "fixed"}}
# tree -> the key that is named, and the complaint about it
REFUSED = [
    (
        chat(pattern="fan_out", fan_out={"join": "first_k", "k": 9}), "traffic.chat.fan_out",
        "k (9) is more than the 5 legs of a request",
    ),
    (
        chat(pattern="fan_out", fan_out={"kinds": [{"prompt_tokens": 3}]}), "traffic.chat.fan_out.kinds.0.output_tokens",
        "expected a value",
    ),
    (
        chat(pattern="fan_out", fan_out={"kinds": [{"prompt_tokens": 3, "output_tokens": 1, "cuont": 2}]}),
        "traffic.chat.fan_out.kinds.0.cuont", "unknown key; did you mean count?",
    ),
    (
        chat(**HEDGED, cancel={"share": 0.5, "after_s": 1.0}), "traffic.chat.cancel",
        "does not apply with pattern = 'hedged'",
    ),
    (
        chat(pattern="hedged", hedge={"policy": "fixed", "target": "second"}), "traffic.chat",
        "names the second target, but there is no [second_target]",
    ),
    (
        chat(pattern="hedged", hedge={"policy": "off", "target": "second"}), "traffic.chat",
        "names the second target, but there is no [second_target]",
    ),
    (chat(pattern="hedged"), "traffic.chat.hedge", 'expected a table, for pattern = "hedged"'),
    (
        chat(hedge={"policy": "fixed"}, fallback={"after_s": 1.0}), "traffic.chat.hedge",
        "cannot be combined with fallback or cancel",
    ),
    (
        chat(thinking="enabled", output_tokens=1024), "traffic.chat.thinking_tokens",
        "expected less than output_tokens (1024), got 1024",
    ),
    (
        chat(pattern="cached", cache={"breakpoints": ["sytem"]}), "traffic.chat.cache.breakpoints.0",
        "did you mean system?",
    ),
    (chat(pattern="cached", cache={"prefix": 3}), "traffic.chat.cache.prefix", "did you mean prefixes?"),
    (chat(pattern="cached"), "traffic.chat.cache", 'expected a table, for pattern = "cached"'),
    (chat(pattern="cachd"), "traffic.chat.pattern", "got 'cachd'; did you mean cached?"),
    (chat(fan_out={"legs": 3}), "traffic.chat.fan_out", "does not apply with pattern = 'streaming'"),
    (chat(pattern="batch", stream=False, thinking="adaptive"), "traffic.chat.thinking", "does not apply with pattern"),
    (chat(cancel={"share": 0.5}), "traffic.chat.cancel", "set after_chunks or after_s"),
    (chat(tags={"tenant": 3}), "traffic.chat.tags.tenant", "expected text in quotes, got 3"),
    (
        {"target": {"protocol": "openai"}, **chat(pattern="batch")}, "traffic.chat.pattern",
        "expected target.protocol 'anthropic', got 'openai', which has no message batches",
    ),
    ({"traffic": {"a": {"target": "second"}}}, "traffic.a", "names the second target, but there is no [second_target]"),
    ({"traffic": {"a": {"target": "other"}}}, "traffic.a.target", "expected 'main' or 'second', got 'other'"),
    (
        {"traffic": {"a": {}, "b": {}}, "crossover": {"a": "a", "b": "b", "gateway": True}}, "crossover.gateway",
        'expected target = "second" in traffic.b and not in traffic.a',
    ),
    (
        {
            "traffic": {"a": {}, "b": {"target": "second"}}, "crossover": {"a": "a", "b": "b", "gateway": True},
            "target": {"url": "http://127.0.0.1:1"}, "second_target": {"url": "simulated"},
        }, "second_target.url", "expected the URL of a gateway in front of target.url",
    ),
    ({"second_target": {"ulr": "x"}}, "second_target.ulr", "unknown key; did you mean url?"),
    ({"target": {"sse": {"pth": "/"}}}, "target.sse.pth", "unknown key; did you mean path?"),
    (
        {"arrival": {"process": "closed"}, **chat(session={"turns_mean": 3.0})}, "traffic.chat.session",
        "a closed loop has no sessions",
    ),
    ({"guard": {"max_token": 5}}, "guard.max_token", "unknown key; did you mean max_tokens?"),
]  # fmt: skip


@pytest.mark.parametrize(("tree", "key", "complaint"), REFUSED)
def test_what_cannot_be_is_refused_with_file_key_and_expectation(tree, key, complaint):
    with pytest.raises(ScenarioError) as raised:
        parse({"name": "n", **tree}, "my.toml")

    message = str(raised.value)
    assert raised.value.exit_code == Exit.USAGE
    assert message.startswith(f"my.toml: {key}: ")
    assert complaint in message
    assert "\n" not in message, "one mistake, one line"


def test_a_mistake_of_an_option_is_refused_by_the_option():
    pairs = [("arrival.process", "closed"), ("arrival.rate_per_s", 5.0)]
    with pytest.raises(ScenarioError) as raised:
        load("streaming", [*pairs], {"arrival.rate_per_s": "--rate"})

    assert str(raised.value).startswith("--rate: a closed loop has no rate: set closed.users")


def test_a_mistake_within_a_table_set_on_the_command_line_is_refused_by_that():
    with pytest.raises(
        ScenarioError, match=r"^--set traffic\.chat\.fan_out\.legs: does not apply with pattern"
    ):
        load("streaming", [("traffic.chat.fan_out.legs", 3)])


def test_a_hedge_that_is_off_is_a_table_all_the_same():
    tree = {"name": "n", "traffic": {"a": {"pattern": "hedged", "hedge": {"policy": "off"}}}}

    assert parse(tree, "my.toml").traffic["a"].hedge.policy == "off"


def test_the_models_in_use_are_named_once_in_order_of_first_use():
    tree = {
        "name": "n",
        "target": {"model": "large"},
        "second_target": {"model": "other"},
        "traffic": {
            "a": HEDGED | {"hedge": {"policy": "fixed", "target": "second"}},
            "b": {"pattern": "progressive", "progressive": {"fast_model": "small"}},
            "c": {"fallback": {"after_s": 1.0, "model": "plain", "target": "second"}},
            "d": {"model": "large"},
        },
    }

    assert tuple(parse(tree, "my.toml").models()) == (
        ("main", "large"), ("second", "other"), ("main", "small"), ("second", "plain"),
    )  # fmt: skip
