"""Secrets in a scenario come from the environment: what looks like one is refused and not repeated, what does not is accepted."""

import base64
from random import Random, SystemRandom
from string import ascii_letters, ascii_lowercase, ascii_uppercase, digits

import pytest

from tailgauge import redaction
from tailgauge.errors import Exit, ScenarioError, TargetError, UsageError
from tailgauge.plan.resolve import resolve
from tailgauge.redaction import MARK, holds_secret, secret_like, shown
from tailgauge.scenario.model import Scenario, load, override, parse

BODY = {"prompt": "{prompt}"}
# Without a prefix. In turn, because three of a thousand keys in which they are mixed look like words.
CANARY = "".join(
    SystemRandom().choice(kind) for kind in (digits, ascii_uppercase, ascii_lowercase) * 12
)


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Only the variables that a test names."""
    monkeypatch.setattr(redaction, "_named", set())
    redaction.forget()
    yield monkeypatch
    redaction.forget()


def tree(**sse):
    return {
        "name": "n",
        "target": {"url": "http://127.0.0.1:1", "protocol": "sse", "sse": {"body": BODY, **sse}},
    }


def headers(**given):
    named = {name.replace("_", "-"): value for name, value in given.items()}
    return {"name": "n", "target": {"url": "http://127.0.0.1:1", "headers": named}}


def body(**given):
    return tree(body={**BODY, **given})


# What stands where, and its key.
SECRET = {
    "authorization": (headers(Authorization=f"Bearer {CANARY}"), "target.headers.Authorization"),
    "a header with a key": (headers(x_goog_api_key=CANARY), "target.headers.x-goog-api-key"),
    "a header with a token": (headers(X_Auth_Token=CANARY), "target.headers.X-Auth-Token"),
    "a cookie": (headers(Cookie=f"sid={CANARY}"), "target.headers.Cookie"),
    "a field": (body(apiKey=CANARY), "target.sse.body.apiKey"),
    "a nested field": (body(auth={"credentials": {"client_secret": CANARY}}), "target.sse.body.auth.credentials.client_secret"),
    "a field in a list": (body(tools=[{"password": CANARY}]), "target.sse.body.tools.password"),
    "a value of any name": (headers(x_custom=CANARY), "target.headers.x-custom"),
    "a value in a list": (body(extra=["a", CANARY]), "target.sse.body.extra"),
    "a short word under such a name": (headers(x_api_key="hunter2!"), "target.headers.x-api-key"),
    "a number under such a name": (body(password=12345678), "target.sse.body.password"),
    "a provider's key in a text": (body(note="use gh" + "p_" + "a1" * 15), "target.sse.body.note"),
    "a signed token": (body(note="eyJhbGciOiJIUzI1NiJ9." + "eyJzdWIiOiIxIn0xyz." + "c2ln"), "target.sse.body.note"),
    "a private key": (body(note="-----BEGIN PRIV" + "ATE KEY-----"), "target.sse.body.note"),
    "a random key under a weak name": (headers(x_auth="a1b2c3d4e5f6a7b8c9d0"), "target.headers.x-auth"),
    "a query": (tree(path=f"/v1/ask?api_key={CANARY}"), "target.sse.path"),
    "a short key in a query": (tree(path="/v1/ask?page=2&access_token=hunter22"), "target.sse.path"),
    "a password in another URL": (body(hook="https://me:hunter22@host/x"), "target.sse.body.hook"),
    "a key instead of a variable": ({"name": "n", "target": {"api_key_env": CANARY}}, "target.api_key_env"),
    "a tag": ({"name": "n", "traffic": {"a": {"tags": {"token": CANARY}}}}, "traffic.a.tags.token"),
    "a model": ({"name": "n", "target": {"model": CANARY}}, "target.model"),
    "where no text may be": ({"name": "n", "seed": CANARY}, "seed"),
    "a variable's name": (headers(x_a={"env": CANARY.lower()}), "target.headers.x-a.env"),
}  # fmt: skip
VALUES = (CANARY, CANARY.lower(), "hunter2", "12345678", "a1a1a1", "eyJ", "BEGIN", "a1b2c3")


@pytest.mark.parametrize(("given", "key"), SECRET.values(), ids=SECRET)
def test_a_literal_that_looks_like_a_secret_is_refused_with_file_key_and_the_way_to_do_it(
    given, key
):
    with pytest.raises(ScenarioError) as raised:
        parse(given, "my.toml")
    message = str(raised.value)

    assert message.startswith(f"my.toml: {key}: looks like a secret by its ")
    assert '{env = "NAME"}' in message
    assert message.endswith("set that variable")
    assert [value for value in VALUES if value in message] == []


def test_almost_every_random_key_looks_like_a_secret_under_any_name():
    drawn = Random(5)
    keys = ["7" + "".join(drawn.choices(ascii_letters + digits, k=35)) for _ in range(2000)]

    assert sum(secret_like("x-custom", key) == "value" for key in keys) >= 0.99 * len(keys)


TEXT = base64.b64encode(b'{"tenant": "acme", "region": "eu-west-1"}').decode()
HARMLESS_HEADERS = {
    "x-request-id": "9f86d081884c7d659a2feaa0c55ad015", "x-correlation-id": "0ujtsYcgvSTl8PAuAdqWYSMnLOv",
    "traceparent": "00-4bf92f3577b34da6a3ce929d0e0e4736-00f067aa0ba902b7-01", "tracestate": "rojo=00f067aa0ba902b7,congo=t61rcWkgMzE",
    "b3": "80f198ee56343ba864fe8b2a57d3eff7-e457b5a2e4d86bd1-1", "idempotency-key": "8e03978e-40d5-43e8-bc93-6894a57f9324",
    "x-session-affinity": "2c5ea4c0-4067-11e9-8bad-9b1deb4d3b7d", "x-session-token": "{call_id}",
    "user-agent": "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 (KHTML, like Gecko)", "accept": "text/event-stream",
    "anthropic-beta": "prompt-caching-2024-07-31,token-efficient-tools-2025-02-19", "content-type": "application/json; charset=utf-8",
    "x-context": TEXT, "if-none-match": '"33a64df551425fcc55e4d42a148795d9f25f89d4"', "x-region": "eu-central-1", "x-author": "team-7",
    "x-amzn-trace-id": "Root=1-67891233-abcdef012345678912345678", "x-model": "{model}", "x-token-budget": "4096",
}  # fmt: skip
HARMLESS_FIELDS = {
    "max_tokens": "{max_tokens}", "token_budget": 4096, "max_token": 5, "stop_token": "<|eot_id|>", "eos_token": "</s>",
    "tokenizer": "cl100k_base", "token_type": "bearer", "stop_tokens": ["###", "</s>"], "prompt_cache_key": "tenant-7-assistant-v2",
    "filters": [{"key": "language", "value": "en"}], "sort_key": "price", "keywords": "price, delivery", "author": "somebody",
    "authority": "example.org", "secretary": "Ms Smith, room 4711", "password_policy": "strict", "password": "", "token": True,
    "model": "deepseek-ai/DeepSeek-R1-Distill-Qwen-1.5B-Q4_K_M-GGUF", "other": "meta-llama/Llama-4-Maverick-17B-128E-Instruct-FP8",
    "fine_tuned": "ft:gpt-4o-mini-2024-07-18:acme:support:9rXkW2ab", "arn": "arn:aws:bedrock:us-east-1::foundation-model/anthropic.claude-3-5-sonnet-20241022-v2:0",
    "sha256": "9f86d081884c7d659a2feaa0c55ad015a3bf4f1b2b0b822cd15d6c15b0f00a08", "class": "AVeryLongCamelCaseIdentifier2OfRequests",
    "callback": "https://example.org/hook?tenant=acme&page=2", "date": "2026-11-23T06:39:31Z", "temperature": 0.7,
    "image": "data:image/png;base64,iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJ", "user_id": "V1StGXR8Z5jdHi6BmyT09aQ",
    "system": "You answer briefly. Basic understanding of tokens is enough; sk-learn-pipelines and Bearer shares are fine.",
}  # fmt: skip


@pytest.mark.parametrize(
    "given",
    [
        *(headers(**{name: value}) for name, value in HARMLESS_HEADERS.items()),
        *(body(**{name: value}) for name, value in HARMLESS_FIELDS.items()),
        tree(path="/v1/chat?api-version=2024-10-21&stream=true"),
    ],
    ids=[*HARMLESS_HEADERS, *HARMLESS_FIELDS, "a query"],
)
def test_what_is_harmless_is_accepted(given):
    assert parse(given, "my.toml").target.sse.path


def test_no_key_of_a_scenario_and_no_packaged_scenario_looks_like_a_secret():
    from tailgauge.scenario.model import _keys
    from tailgauge.scenario.packaged import names

    assert [path for path in _keys(Scenario) if redaction.secret_like(path[-1], "some words")] == []
    assert len([load(name) for name in names()]) > 10


@pytest.mark.parametrize(
    "text",
    [f"target.headers.x-api-key={CANARY}", f'target.sse.body={{prompt="{{prompt}}", api_key="{CANARY}"}}',
     f"target.model={CANARY}", f"target.url=http://127.0.0.1/v1?key={CANARY}", f"target.url=http://me:{CANARY}@127.0.0.1",
     f"target.api_key_env={CANARY}", f"seed={CANARY}"],
    ids=range(7),
)  # fmt: skip
def test_the_command_line_refuses_them_too_and_names_the_option(text):
    key = text.partition("=")[0]
    with pytest.raises(UsageError) as raised:
        load("custom_stream", [override(text)])

    assert str(raised.value).startswith(f"--set {key}")
    assert CANARY not in str(raised.value)


@pytest.mark.parametrize(
    "text",
    [CANARY, f"a b={CANARY}", f"={CANARY}", f"target.headers.x-api-key:{CANARY}"],
    ids=range(4),  # no value that is drawn anew in each process
)
def test_what_is_no_override_is_refused_without_a_secret_in_it(text):
    with pytest.raises(UsageError, match=r"expected table\.key=value") as raised:
        override(text)

    assert CANARY not in str(raised.value)


# --- from the environment ---------------------------------------------------------------------------------------

NAMED = tree(body={**BODY, "auth": {"list": [{"pass": {"env": "MY_OTHER"}}]}})
NAMED["target"]["headers"] = {"Authorization": {"env": "MY_ENGINE"}, "x-plain": "{model}"}
NAMED["traffic"] = {
    "chat": {"headers": {"x-of": {"env": "MY_THIRD"}}, "body": {"a": [{"env": "MY_THIRD"}]}}
}


def test_every_variable_that_a_scenario_names_is_a_secret_from_then_on(environment):
    environment.setenv("MY_ENGINE", CANARY)
    environment.setenv("MY_OTHER", CANARY[::-1])
    environment.setenv("MY_THIRD", CANARY[3:] + CANARY[:3])
    before = holds_secret("MY_ENGINE"), holds_secret("MY_OTHER")
    scenario = parse(NAMED, "my.toml")

    assert before == (False, False)
    assert shown(f"{CANARY} {CANARY[::-1]}", 100) == f"{MARK} {MARK}"
    assert CANARY not in scenario.model_dump_json()
    assert parse(scenario.model_dump(mode="json"), "the plan") == scenario


@pytest.mark.parametrize(
    ("missing", "key"),
    [
        ("MY_ENGINE", "target.headers.Authorization"),
        ("MY_OTHER", "target.sse.body.auth.list.pass"),
        ("MY_THIRD", "traffic.chat.headers.x-of"),
    ],
)
def test_a_variable_that_is_not_set_is_named_with_its_key(environment, tmp_path, missing, key):
    from tailgauge.scenario.model import toml_file

    (tmp_path / "my.toml").write_text(toml_file(NAMED))
    environment.setenv("MY_ENGINE", CANARY)
    environment.setenv("MY_OTHER", CANARY[::-1])
    environment.setenv("MY_THIRD", CANARY[3:] + CANARY[:3])
    resolve(str(tmp_path / "my.toml"), [], tmp_path)
    environment.delenv(missing)
    resolve(str(tmp_path / "my.toml"), [], tmp_path, sends=False)
    with pytest.raises(
        TargetError, match=f"environment variable {missing} is not set.*{key} names it"
    ) as raised:
        resolve(str(tmp_path / "my.toml"), [], tmp_path)

    assert raised.value.exit_code == Exit.TARGET


@pytest.mark.parametrize(
    ("given", "message"),
    [
        (headers(x_a={"env": "no name"}), "x-a: expected {env ="),
        (headers(x_a={"env": 5}), "x-a: expected {env ="),
        (
            headers(x_a={"environment": "MY_ENGINE"}),
            'x-a: expected text in quotes, or {env = "NAME"}',
        ),
        (headers(x_a=5), 'x-a: expected text in quotes, or {env = "NAME"}'),
        (body(a={"b": {"env": "1st"}}), "body: a.b: expected {env ="),
    ],
)
def test_a_variable_has_a_name(given, message):
    with pytest.raises(ScenarioError) as raised:
        parse(given, "my.toml")

    assert message in str(raised.value)
    assert "my.toml: target." in str(raised.value)
