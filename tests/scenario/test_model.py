"""What a scenario may say, and how a wrong one is refused."""

from __future__ import annotations

import json
import math
import re

import pytest

from tailgauge.errors import ScenarioError, UsageError
from tailgauge.scenario.model import Stages, load, override, parse, scaled, spelled
from tailgauge.scenario.objective import name_of
from tailgauge.scenario.packaged import packaged

SLO = {"metric": "tpot", "max_ms": 1}
NAME_SHAPE = "must be lower-case letters, digits, - and _, at most 48 of them"
# tree -> the key that is named, and what is error_text of it
REFUSED = [
    (
        {"experiment": {"kind": "hedging", "hedging": {"delays_ms": [50, "soon"]}}},
        "experiment.hedging.delays_ms.1",
        "expected ms, a number >= 0, or \"adaptive\" (got 'soon')",
    ),
    ({"trafic": {}}, "trafic", "unknown key; did you mean traffic?"),
    ({"xyzzy": 1}, "xyzzy", "unknown key. Expected one of: name, description, seed, repeat_prompts, clock, reader,"),
    ({"target": {"protocl": "openai"}}, "target.protocl", "unknown key; did you mean protocol?"),
    ({"target": {"api_key": "x"}}, "target.api_key", "unknown key; did you mean api_key_env?"),
    ({"stages": {"warm_up": 1}}, "stages.warm_up", "unknown key; did you mean warmup_s?"),
    ({"traffic": {"a": {"prompt_token": 1}}}, "traffic.a.prompt_token", "did you mean prompt_tokens?"),
    ({"slo": {"a": {**SLO, "max": 1}}}, "slo.a.max", "does not apply to tpot"),
    ({"slo": {"a": {**SLO, "maxms": 1}}}, "slo.a.maxms", "unknown key; did you mean max_ms?"),
    ({"slo": {"a": {"metric": "error_rate", "min": 0.1}}}, "slo.a.max", "expected a value"),
    ({"slo": {"a": {"metric": "error_rate", "max": 2}}}, "slo.a.max", "no run can miss it: expected a share between 0 and 1"),
    ({"slo": {"a": {**SLO, "traffic": "mian"}}}, "slo.a.traffic", "there is no traffic.mian; did you mean main?"),
    ({"slo": {"a": {**SLO, "tag": "gold"}}}, "slo.a.tag", "expected key=value"),
    ({"slo": {"a": "ttft p95 < 800"}}, "slo.a", "the bound of ttft needs a unit, ms or s: write 'ttft p95 < 800ms'"),
    ({"slo": {"ttft_p95_ms": 800}}, "slo.ttft_p95_ms", "expected a text or a table, got 800: write \"ttft p95 < 800ms\", or a table [slo.NAME] with"),
    ({"slo": {"a": [1.5]}}, "slo.a", "expected a text or a table, got [1.5]"),
    ({"slo": {"a": "ttft p95 is fine"}}, "slo.a", "expected METRIC pNN < BOUND: write 'ttft p95 < 800ms'"),
    ({"slo": {"a": "error_rate > 1%"}}, "slo.a", "error_rate has an upper bound, <: write 'error_rate < 1%'"),
    ({"slo": {"a": {**SLO, "precision": 0.0}}}, "slo.a.precision", "expected a number >= 0.001, got 0.0"),
    ({"slo": {"a": "ttft p95 < 1s precision 60%"}}, "slo.a.precision", "expected a number <= 0.5, got 0.6"),
    ({"slo": {"a": "ttft p95 < 1s precision 5"}}, "slo.a", "write 'ttft p95 < 1s precision 5%'"),
    ({"slo": {"a": "error_rate < 1% precision 5%"}}, "slo.a.precision", "only latencies have one, not error_rate"),
    ({"slo": {"a": {**SLO, "precision": 0.05, "gate": False}}}, "slo.a.precision", "does not apply with gate = false"),
    ({"alert": {"a": SLO}}, "alert", "unknown key; write each bound as a table [slo.NAME] with gate = false"),
    ({"use_case": {"a": ["ttft p95 < 1s"]}}, "use_case", "unknown key; write each bound as a table [slo.NAME] with gate = false"),
    ({"slo": {"a": "error_rate p95 < 1%"}}, "slo.a", "error_rate has no percentiles"),
    ({"slo": {"a": "tfft p95 < 1s"}}, "slo.a", "tfft is not a metric: write 'ttft p95 < 1s'"),
    ({"slo": {"a": {"metric": "tpot"}}}, "slo.a.max_ms", "expected a value"),
    ({"slo": {"a": {"max_ms": 1}}}, "slo.a.metric", "expected a value"),
    ({"slo": {"a": {**SLO, "metric": "tttf"}}}, "slo.a.metric", "did you mean ttft?"),
    ({"slo": {"a": {**SLO, "quantile": 1.0}}}, "slo.a.quantile", "expected a number < 1, got 1.0"),
    ({"arrival": {"rate_per_s": 0}}, "arrival.rate_per_s", "expected a number > 0, got 0"),
    ({"arrival": {"rate_per_s": "fast"}}, "arrival.rate_per_s", "expected a number, got 'fast'"),
    ({"arrival": {"rate_per_s": math.nan}}, "arrival.rate_per_s", "expected a finite number, got nan"),
    ({"arrival": {"rate_per_s": True}}, "arrival.rate_per_s", "expected a number, got True"),
    ({"arrival": {"rate_per_s": 2e9}}, "arrival.rate_per_s", "expected a number <= 1e+09"),
    ({"arrival": {"process": "poison"}}, "arrival.process", "got 'poison'; did you mean poisson?"),
    ({"arrival": 5}, "arrival", "expected a table, got 5"),
    ({"description": "x" * 501}, "description", "expected at most 500 characters, got 'xxx"),
    ({"traffic": {}}, "traffic", "there is no table [traffic.NAME]: add one"),
    ({"traffic": 5}, "traffic", "expected a table of tables, got 5"),
    ({"traffic": {"a": 5}}, "traffic.a", "expected a table, got 5"),
    ({"traffic": {"a": {"pattern": "stream"}}}, "traffic.a.pattern", "did you mean streaming?"),
    ({"traffic": {"a": {"prompt_tokens": 1.5}}}, "traffic.a.prompt_tokens", "expected a whole number, got 1.5"),
    ({"target": "simulated"}, "target", "expected a table, got 'simulated'"),
    ({"target": {"protocol": "grpc"}}, "target.protocol", "expected 'anthropic', 'openai' or 'sse', got 'grpc'"),
    ({"target": {"protocol": "OpenAI"}}, "target.protocol", "did you mean openai?"),
    ({"target": {"url": ""}}, "target.url", "expected http:// or https:// in front, such as http://127.0.0.1:8000"),
    ({"target": {"url": "localhost:8000"}}, "target.url", "write http://localhost:8000"),
    ({"target": {"url": "ftp://host"}}, "target.url", "write http://host"),
    ({"target": {"url": "http://"}}, "target.url", "such as http://127.0.0.1:8000"),
    ({"target": {"url": "http:///v1"}}, "target.url", "write http://v1"),
    ({"target": {"url": "http://a b"}}, "target.url", "a URL has no spaces: write http://ab"),
    ({"target": {"url": "http://host?x=1 2"}}, "target.url", "a URL has no spaces"),
    ({"target": {"url": "http://host/v1?x=1#top"}}, "target.url", "no part after #"),
    ({"target": {"url": "http://host/#top"}}, "target.url", "no part after #: write http://host/"),
    ({"target": {"url": "http://host\n"}}, "target.url", "a URL has no spaces: write http://host"),
    ({"target": {"url": "http://host:0"}}, "target.url", "expected a port from 1 to 65535 after host, got 0"),
    ({"target": {"url": "http://host:70000"}}, "target.url", "expected a port from 1 to 65535 after host, got 70000"),
    ({"target": {"url": "http://host:"}}, "target.url", "expected HOST or HOST:PORT"),
    ({"target": {"url": "http://host:http"}}, "target.url", "expected HOST or HOST:PORT"),
    ({"target": {"url": "http://:80"}}, "target.url", "expected a host in front of the port"),
    ({"target": {"url": "http://[::1"}}, "target.url", "expected HOST or HOST:PORT"),
    ({"target": {"url": 5}}, "target.url", "expected text in quotes, got 5"),
    ({"target": {"model": ""}}, "target.model", "expected some text"),
    ({"target": {"api_key_env": "A-B"}}, "target.api_key_env", "got 'A-B'"),
    ({"target": {"api_key_env": "A\n"}}, "target.api_key_env", "got 'A\\n'"),
    ({"rate_per_s": 5}, "rate_per_s", "unknown key; did you mean arrival.rate_per_s?"),
    ({"limits": {"rpm": 5}}, "limits.rpm", "unknown key; did you mean simulated.limits.rpm?"),
    ({"traffic": {"a": {"prefixes": 5}}}, "traffic.a.prefixes", "did you mean traffic.a.cache.prefixes?"),
    ({"traffic": {"a": {"max_tokens": 5}}}, "traffic.a.max_tokens", "did you mean output_tokens?"),
    (
        {"stages": {"duration_s": 10, "warmup_s": 5, "cooldown_s": 5}}, "stages",
        "warmup_s (5) and cooldown_s (5) leave nothing of duration_s (10)",
    ),
    ({"arrival": {"rate_per_s": 1e6}, "stages": {"duration_s": 100}}, "arrival.rate_per_s", "million arrivals in duration_s: split the run"),
    ({"simulated": {"limits": {"headers": "aws"}}}, "simulated.limits.headers", "expected 'provider', "),
    (
        {"simulated": {"faults": {"a": {"kind": "error_event", "share": 0.1, "shape": "odd"}}}},
        "simulated.faults.a.shape",
        "expected 'provider', 'wrapped'",
    ),
    ({"seed": -1}, "seed", "expected a number >= 0, got -1"),
    ({"seed": 2**63}, "seed", "expected a number < 9.22337e+18"),
    ({"name": "Bad Name"}, "name", NAME_SHAPE),
    ({"name": ""}, "name", NAME_SHAPE),
    ({"name": "-a"}, "name", NAME_SHAPE),
    ({"name": "a\n"}, "name", NAME_SHAPE),
    ({"name": "x" * 49}, "name", NAME_SHAPE),
    ({"report": {"first_token": "tex"}}, "report.first_token", "did you mean text?"),
]  # fmt: skip


def refusal(tree: dict) -> str:
    with pytest.raises(ScenarioError) as raised:
        parse({"name": "n", **tree}, "my.toml")
    return str(raised.value)


@pytest.mark.parametrize(("tree", "key", "error_text"), REFUSED)
def test_what_cannot_be_is_refused_with_file_key_and_expectation(tree, key, error_text):
    message = refusal(tree)

    assert message.startswith(f"my.toml: {key}: ")
    assert error_text in message


@pytest.mark.parametrize(
    "url", ["http://me:hunter22@host", "https://hunter22@host/v1", "ftp://me:hunter22@host"]
)
def test_a_password_in_a_url_is_refused_and_not_repeated(url):
    message = refusal({"target": {"url": url}})

    assert message.startswith("my.toml: target.url: must ")
    assert "hunter22" not in message


@pytest.mark.parametrize(
    ("url", "kept"),
    [
        ("simulated", "simulated"),
        ("http://host", "http://host"),
        ("http://host/", "http://host"),
        ("https://host:65535/a/b/", "https://host:65535/a/b"),
        ("http://127.0.0.1:1", "http://127.0.0.1:1"),
        ("http://[::1]:8000/v1", "http://[::1]:8000/v1"),
    ],
)
def test_a_url_is_kept_without_its_last_slash(url, kept):
    assert parse({"name": "n", "target": {"url": url}}, "my.toml").target.url == kept


def test_several_errors_are_reported_at_once():
    lines = refusal({"seed": -1, "trafic": {}, "arrival": {"rate_per_s": 0}}).splitlines()

    assert {line.split(": ")[1] for line in lines} == {"seed", "trafic", "arrival.rate_per_s"}


def test_a_whole_number_will_do_for_a_rate():
    assert parse({"name": "n", "arrival": {"rate_per_s": 50}}, "my.toml").arrival.rate_per_s == 50.0


@pytest.mark.parametrize(
    ("stem", "name"),
    [
        ("fan_out", "fan_out"),
        ("My chat (copy)", "my-chat-copy"),
        ("it's mine.v2", "it-s-mine-v2"),
        ("-a", "a"),
        ("\u65e5", "scenario"),
        ("x" * 60, "x" * 48),
    ],
)
def test_a_scenario_without_a_name_has_that_of_its_file(stem, name, tmp_path):
    path = tmp_path / f"{stem}.toml"
    path.write_text("[traffic.chat]\n", encoding="utf-8")

    assert load(path).name == name


@pytest.mark.parametrize("path", sorted(packaged("scenarios").glob("*.toml")), ids=lambda p: p.stem)
def test_a_scenario_survives_the_way_to_a_worker(path):
    """The master sends plain JSON values; the worker parses them again."""
    scenario = load(
        str(path),
        [("target.ca_file", "ca.pem"), ("slo.more.metric", "tpot"), ("slo.more.max_ms", 5)],
    )
    sent = json.loads(json.dumps(scenario.model_dump(mode="json")))

    assert parse(sent, "the plan") == scenario


# --- stages -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("stages", "at_s", "stage"),
    [
        (Stages(duration_s=30), 0.0, "warmup"),
        (Stages(duration_s=30), 2.999, "warmup"),
        (Stages(duration_s=30), 3.0, "steady"),
        (Stages(duration_s=30), 29.999, "steady"),
        (Stages(duration_s=6000), 59.9, "warmup"),
        (Stages(duration_s=6000), 60.0, "steady"),
        (Stages(duration_s=30, warmup_s=0), 0.0, "steady"),
        (Stages(duration_s=30, cooldown_s=10), 19.999, "steady"),
        (Stages(duration_s=30, cooldown_s=10), 20.0, "cooldown"),
        (Stages(duration_s=30, cooldown_s=10), 29.999, "cooldown"),
    ],
)
def test_an_arrival_falls_into_the_stage_of_its_scheduled_time(stages, at_s, stage):
    assert stages.stage_at(at_s) == stage


@pytest.mark.parametrize(("stages", "duration_s", "expected"), [
    (Stages(duration_s=30), 10, {"duration_s": 10, "cooldown_s": 0.0}),
    (Stages(duration_s=40, warmup_s=10, cooldown_s=4), 20, {"duration_s": 20, "warmup_s": 5.0, "cooldown_s": 2.0}),
    (Stages(duration_s=40, warmup_s=39, cooldown_s=0), 1, {"duration_s": 1, "warmup_s": 0.975, "cooldown_s": 0.0}),
])  # fmt: skip
def test_scaling_keeps_the_proportions_of_the_stages(stages, duration_s, expected):
    assert scaled(stages, duration_s) == pytest.approx(expected)
    assert parse({"name": "n", "stages": expected}, "my.toml").stages.duration_s == duration_s


# --- overrides --------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("text", "pair"),
    [
        ("arrival.rate_per_s=20", ("arrival.rate_per_s", 20)),
        ("arrival.rate_per_s = 2.5 ", ("arrival.rate_per_s", 2.5)),
        ("target.url=http://host/a=b", ("target.url", "http://host/a=b")),
        ('target.model="true"', ("target.model", "true")),
        ("target.model=true", ("target.model", True)),
        ("target.model=llama-3.1:8b", ("target.model", "llama-3.1:8b")),
        ("description=", ("description", "")),
        ("traffic.a={weight = 2}", ("traffic.a", {"weight": 2})),
        ("stages.duration_s=inf", ("stages.duration_s", math.inf)),
        ("a-b.c_d.0=x", ("a-b.c_d.0", "x")),
    ],
)
def test_an_override_is_a_dotted_key_and_a_toml_value_or_plain_text(text, pair):
    assert override(text) == pair


@pytest.mark.parametrize(
    "value",
    [
        3, 2.5, True, "plain text", "true", "7", "", " spaced ", 'a "quoted" \\ one', "a\nb", "[1", [1, "x", [True]],
        {"duration_s": 9.0, "of its own": {"x": ["é", False]}}, {}, [], math.inf, {"an 😀": "😀"}, "a\x7fb", ["\u202eb", "a\tb"],
    ],
)  # fmt: skip
def test_what_is_noted_of_an_override_reads_back_as_the_same(value):
    assert override(spelled("a.b", value)) == ("a.b", value)


@pytest.mark.parametrize(
    ("text", "label", "bound", "name"),
    [
        ("ttft p95 < 800ms", "ttft p95", 800.0, "ttft_p95"),
        ("chat:e2e p99.9<=1.5 s", "e2e p99.9 (chat)", 1500.0, "chat_e2e_p99_9"),
        ("tier=gold: error_rate < 1%", "error_rate (tier=gold)", 0.01, "tier_gold_error_rate"),
        ("goodput > 0.95", "goodput", 0.95, "goodput"),
        ("429_rate < 2%", "429_rate", 0.02, "429_rate"),
        ("requests_per_s > 40/s", "requests_per_s", 40.0, "requests_per_s"),
        ("join_sched p50 < 3s", "join_sched p50", 3000.0, "join_sched_p50"),
    ],
)
def test_an_objective_is_a_line_of_text_in_the_file_or_on_the_command_line(
    text, label, bound, name
):
    scenario = parse({"name": "n", "traffic": {"chat": {}}, "slo": {"goal": text}}, "my.toml")
    objective = scenario.slo["goal"]

    assert (objective.label, objective.bound, name_of(text)) == (label, pytest.approx(bound), name)
    assert parse(json.loads(json.dumps(scenario.model_dump(mode="json"))), "the plan") == scenario


@pytest.mark.parametrize("text", ["", "rate", "=5", ".a=1", "a.=1", "a..b=1", "a b=1", "--x"])
def test_an_override_without_key_or_equals_sign_is_refused_with_an_example(text):
    with pytest.raises(
        UsageError, match=re.escape("expected table.key=value, for example --set arrival")
    ):
        override(text)


def test_the_last_override_wins_and_the_others_stay_as_in_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = 3\n[arrival]\nrate_per_s = 5\nprocess = 'constant'\n[traffic.a]\n")
    scenario = load(
        str(file), [("arrival.rate_per_s", 7), ("arrival.rate_per_s", 8), ("stages.duration_s", 9)]
    )

    assert (scenario.name, scenario.seed, scenario.arrival.process) == ("mine", 3, "constant")
    assert (scenario.arrival.rate_per_s, scenario.stages.duration_s) == (8.0, 9.0)


def test_a_wrong_override_is_named_as_such_and_not_as_the_file(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = -3\n[traffic.a]\n")
    with pytest.raises(ScenarioError) as raised:
        load(str(file), [("arrival.rate_per_s", "fast")])

    assert set(str(raised.value).splitlines()) == {
        f"{file}: seed: expected a number >= 0, got -3",
        "--set arrival.rate_per_s: expected a number, got 'fast'",
    }


@pytest.mark.parametrize("text", ["", "seed = 3\n[arrival]\nrate_per_s = 5\n", "[traffic]\n"])
def test_a_scenario_without_traffic_is_refused(tmp_path, text):
    file = tmp_path / "mine.toml"
    file.write_text(text)

    with pytest.raises(ScenarioError, match=r"mine\.toml: .*\[traffic\.NAME\]"):
        load(str(file))


# What no run can miss, or none can be shown to meet.
NO_BOUNDS = [
    ("complete > 0%", "min", "no run can miss it: expected a share between 0 and 1"),
    ("complete > 100%", "min", "no run can be shown to meet it"),
    ("answered >= 100.5%", "min", "no run can be shown to meet it"),
    ("goodput > 0%", "min", "no run can miss it"),
    ("cache_hit > 150%", "min", "no run can be shown to meet it"),
    ("error_rate < 0%", "max", "no run can be shown to meet it"),
    ("error_rate < 100%", "max", "no run can miss it"),
    ("429_rate < 120%", "max", "no run can miss it"),
    ("abandoned < 0", "max", "no run can be shown to meet it"),
    ("requests_per_s > 0", "min", "no run can miss it: expected more than 0"),
    ("output_tokens_per_s > 0/s", "min", "no run can miss it"),
    ("cost_per_good_request < 0", "max", "no run can be shown to meet it: expected more than 0"),
    ({"metric": "complete", "min": 1.0}, "min", "no run can be shown to meet it"),
    ({"metric": "requests_per_s", "min": -1.0}, "min", "expected a number >= 0, got -1"),
    ({"metric": "ttft", "max_ms": -5.0}, "max_ms", "expected a number > 0, got -5"),
    ("ttft p95 < 0ms", "max_ms", "no run can be shown to meet it: expected more than 0"),
    ("ttft p100 < 5ms", "quantile", "expected a percentile between 0 and 100"),
]


@pytest.mark.parametrize(("objective", "key", "expected"), NO_BOUNDS)
def test_a_bound_that_no_run_can_miss_or_meet_is_refused(objective, key, expected):
    lines = refusal({"slo": {"goal": objective}}).splitlines()

    where = "slo.goal" if isinstance(objective, str) else f"slo.goal.{key}"
    assert [line.partition(": ")[2].partition(": ")[0] for line in lines] == [where]
    assert expected in lines[0]


def test_an_override_into_a_value_is_refused(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = 3\n")

    with pytest.raises(UsageError, match=r"--set seed\.x: seed is a value, not a table"):
        load(str(file), [("seed.x", 1)])


# --- files ------------------------------------------------------------------------------------------------------


def test_a_file_that_is_not_toml_is_refused_with_the_place(tmp_path):
    file = tmp_path / "mine.toml"
    file.write_text("seed = \n")

    with pytest.raises(ScenarioError, match=r"mine\.toml: not valid TOML: .*line 1"):
        load(str(file))


def test_a_file_of_ones_own_goes_before_a_packaged_name(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "quickstart").write_text("seed = 9\n[traffic.a]\n")

    assert load("quickstart").seed == 9


@pytest.mark.parametrize("weight", ["0", "0.0"])
def test_weight_0_leaves_a_traffic_table_out_where_another_is_left(tmp_path, weight):
    (tmp_path / "mine.toml").write_text("[traffic.a]\n[traffic.b]\nweight = 0\n[traffic.c]\n")
    file = str(tmp_path / "mine.toml")

    assert list(load(file, [override(f"traffic.a.weight={weight}")]).traffic) == ["c"]
    assert list(load(file, [override("traffic.b.weight=2")]).traffic) == ["a", "b", "c"]
    with pytest.raises(ScenarioError, match=r"traffic\.\*\.weight: expected a number > 0, got 0"):
        load(file, [override(f"traffic.*.weight={weight}")])
    with pytest.raises(ScenarioError, match=r"traffic\.a\.weight: expected a number"):
        load(file, [override("traffic.a.weight=false")])


def test_a_star_sets_a_key_in_every_traffic_table(tmp_path):
    (tmp_path / "mine.toml").write_text("[traffic.a]\n[traffic.b]\nprompt_tokens = 9\n")
    pair = override("traffic.*.prompt_tokens=70")

    two = load(str(tmp_path / "mine.toml"), [pair])

    assert [table.prompt_tokens for table in two.traffic.values()] == [70, 70]
    assert override(spelled(*pair)) == pair
    with pytest.raises(
        ScenarioError, match=r"^(--input-tokens: expected a number >= 1, got 0\n?){2}$"
    ):
        load(
            str(tmp_path / "mine.toml"),
            [("traffic.*.prompt_tokens", 0)],
            {"traffic.*.prompt_tokens": "--input-tokens"},
        )
