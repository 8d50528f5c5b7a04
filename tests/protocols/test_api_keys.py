"""Keys: who gets one, who does not."""

import os

import pytest

from tailgauge.errors import Exit, TargetError
from tailgauge.protocols.api_keys import at_provider, key_for, without_keys_for_others
from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.protocol import PLACEHOLDER_KEY
from tailgauge.protocols.table import PROVIDERS, Target

ANTHROPIC, OPENAI = "https://api.anthropic.com", "https://api.openai.com/v1"


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    """Only the keys that a test sets."""
    for name in list(os.environ):
        if any(word in name for word in ("KEY", "TOKEN", "SECRET", "ANTHROPIC", "OPENAI")):
            monkeypatch.delenv(name)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    return monkeypatch


@pytest.mark.parametrize(
    ("url", "protocol", "expected"),
    [
        (ANTHROPIC, "anthropic", True),
        ("https://API.Anthropic.com/v1", "anthropic", True),
        ("https://api.anthropic.com:443", "anthropic", True),
        (OPENAI, "openai", True),
        ("http://api.anthropic.com", "anthropic", False),
        (ANTHROPIC, "openai", False),
        ("https://api.anthropic.com.evil.example", "anthropic", False),
        ("https://api.anthropic.com@evil.example", "anthropic", False),
        ("https://evil.example/api.anthropic.com", "anthropic", False),
        ("https://evil.example#api.anthropic.com", "anthropic", False),
        ("https://xapi.anthropic.com", "anthropic", False),
        ("http://127.0.0.1:8000", "anthropic", False),
        ("simulated", "anthropic", False),
    ],
)
def test_only_the_providers_own_host_over_tls_is_the_provider(url, protocol, expected):
    keys = {"anthropic": "key-of-anthropic", "openai": "key-of-openai"}

    assert at_provider(url, protocol) == expected
    assert key_for(url, protocol, None) == (keys[protocol] if expected else PLACEHOLDER_KEY)


def test_a_named_variable_goes_where_the_scenario_says(environment):
    environment.setenv("MY_ENGINE", "  key-of-mine\n")

    assert key_for("http://127.0.0.1:8000", "openai", "MY_ENGINE") == "key-of-mine"
    assert key_for(ANTHROPIC, "anthropic", "MY_ENGINE") == "key-of-mine"


@pytest.mark.parametrize("value", [None, "", "  \n"])
@pytest.mark.parametrize(
    ("url", "named", "variable", "why"),
    [
        (ANTHROPIC, None, "ANTHROPIC_API_KEY", "api.anthropic.com wants a key"),
        ("http://127.0.0.1:1", "MY_ENGINE", "MY_ENGINE", "target.api_key_env names it"),
    ],
)
def test_a_missing_key_is_a_target_error_that_names_the_variable(
    environment, value, url, named, variable, why
):
    environment.delenv(variable, raising=False)
    if value is not None:
        environment.setenv(variable, value)
    with pytest.raises(TargetError) as raised:
        key_for(url, "anthropic", named)

    assert str(raised.value) == (
        f"no API key: the environment variable {variable} is not set ({why}). Set it and run again"
    )
    assert raised.value.exit_code == Exit.TARGET


@pytest.mark.parametrize(
    "key", ["two words", "line\r\nend", "umlaut-ä", "bell-\x07", "tab\tinside"]
)
def test_a_key_that_would_break_a_header_is_refused_and_not_shown(environment, key):
    environment.setenv("MY_ENGINE", key)
    with pytest.raises(TargetError) as raised:
        key_for("http://127.0.0.1:1", "openai", "MY_ENGINE")

    assert "MY_ENGINE" in str(raised.value)
    assert key not in str(raised.value)


# --- what an SDK reads by itself --------------------------------------------------------------------------------


@pytest.mark.parametrize("protocol", PROVIDERS)
def test_what_an_sdk_would_send_to_any_host_is_out_of_its_sight_and_comes_back(
    environment, protocol
):
    provider = PROVIDERS[protocol]
    for name in provider.also_read:
        environment.setenv(name, f"value of {name}")
    before = dict(os.environ)
    with without_keys_for_others("http://127.0.0.1:1", protocol):
        assert not set(provider.also_read) & set(os.environ)

    assert dict(os.environ) == before
    with without_keys_for_others(f"https://{provider.host}", protocol):
        assert dict(os.environ) == before


def test_hidden_variables_come_back_after_an_error_too(environment):
    environment.setenv("OPENAI_ORG_ID", "org")
    with pytest.raises(KeyError), without_keys_for_others("http://127.0.0.1:1", "openai"):
        raise KeyError

    assert os.environ["OPENAI_ORG_ID"] == "org"


def test_no_variable_appears_that_was_not_there():
    with without_keys_for_others("http://127.0.0.1:1", "openai"):
        pass

    assert "OPENAI_ORG_ID" not in os.environ


# --- a protocol without a provider ------------------------------------------------------------------------------


def test_an_applications_own_stream_gets_the_key_that_is_named_and_no_other(environment):
    environment.setenv("MY_APP", "key-of-the-app")

    assert key_for("https://api.anthropic.com", "sse", None) == PLACEHOLDER_KEY
    assert key_for("https://app.example", "sse", "MY_APP") == "key-of-the-app"
    app = CustomSse(Target(protocol="sse"), "https://app.example")
    assert app.key_headers(PLACEHOLDER_KEY) == {}
    assert app.key_headers("key-of-the-app") == {"authorization": "Bearer key-of-the-app"}
    with without_keys_for_others("https://app.example", "sse"):
        assert os.environ["ANTHROPIC_API_KEY"] == "key-of-anthropic"
