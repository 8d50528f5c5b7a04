"""Which header carries a key: as the SDK at the provider, the protocol's own elsewhere, and none without a key."""

import pytest
from pydantic import ValidationError

from tailgauge.call import Call, Prompt
from tailgauge.protocols.custom_sse import SseSettings
from tailgauge.protocols.table import Target
from tailgauge.protocols.target import Capture, Endpoint

ELSEWHERE = "http://127.0.0.1:8123"
PROVIDERS = {"anthropic": "https://api.anthropic.com", "openai": "https://api.openai.com/v1"}
KEYS = ("authorization", "x-api-key", "api-key", "proxy-authorization")
CUSTOM = {"env": "MY_KEY"}


@pytest.fixture(autouse=True)
def environment(monkeypatch):
    for name in ("ANTHROPIC_AUTH_TOKEN", "ANTHROPIC_CUSTOM_HEADERS"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("ANTHROPIC_API_KEY", "key-of-anthropic")
    monkeypatch.setenv("OPENAI_API_KEY", "key-of-openai")
    monkeypatch.setenv("MY_KEY", "key-of-mine")


def authorized(protocol, url=ELSEWHERE, **target):
    """The headers that authorize, as sent by the SDK and, where there is one, by the template of it."""
    if protocol == "sse":
        target["sse"] = SseSettings(body={"q": "{prompt}"})
    capture = Capture()
    endpoint = Endpoint(url, Target(protocol=protocol, url=url, **target), capture)
    call = Call(Prompt.of("why?"), 5)
    values = endpoint._values_by_id(call, 0, "")("a/0/0/0")
    built = capture.request_of(
        endpoint._build(endpoint._sdk, call, "a/0/0/0", endpoint._additions_of(""), values)
    )
    prepared = endpoint.prepared(call, "a/0/0/0")
    assert built is not None
    if protocol != "sse":
        assert prepared == built
    lines = [
        line.decode().partition(": ") for line in built.partition(b"\r\n\r\n")[0].split(b"\r\n")[1:]
    ]
    found = [(name.lower(), value) for name, _, value in lines if name.lower() in KEYS]
    assert len(dict(found)) == len(found)
    return dict(found)


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "sse"])
def test_without_a_key_nothing_authorizes(protocol):
    assert authorized(protocol) == {}


@pytest.mark.parametrize(
    ("protocol", "expected"),
    [
        ("anthropic", {"x-api-key": "key-of-mine"}),
        ("openai", {"authorization": "Bearer key-of-mine"}),
        ("sse", {"authorization": "Bearer key-of-mine"}),
    ],
)
def test_a_named_key_goes_out_in_the_protocols_own_header(protocol, expected):
    assert authorized(protocol, api_key_env="MY_KEY") == expected


@pytest.mark.parametrize("protocol", ["anthropic", "openai", "sse"])
@pytest.mark.parametrize(
    ("header", "expected"),
    [
        ("api-key", {"api-key": "key-of-mine"}),
        ("X-Api-Key", {"x-api-key": "key-of-mine"}),
        ("Authorization", {"authorization": "Bearer key-of-mine"}),
    ],
)
def test_the_scenario_may_name_another_header(protocol, header, expected):
    assert authorized(protocol, api_key_env="MY_KEY", auth_header=header) == expected


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
def test_at_the_provider_the_key_goes_out_as_the_sdk_sends_it(protocol):
    expected = {"authorization": f"Bearer key-of-{protocol}"}

    assert authorized(protocol, PROVIDERS[protocol]) == expected
    assert authorized(protocol, PROVIDERS[protocol], auth_header="x-api-key") == {
        "x-api-key": f"key-of-{protocol}"
    }


@pytest.mark.parametrize("protocol", ["anthropic", "openai"])
@pytest.mark.parametrize("url", ["elsewhere", "provider"])
@pytest.mark.parametrize("header", ["api-key", "x-api-key", "Proxy-Authorization"])
def test_headers_that_authorize_are_alone(protocol, url, header):
    """Azure fails on a second authorization; and no key of the provider's is needed then."""
    where = ELSEWHERE if url == "elsewhere" else PROVIDERS[protocol]

    assert authorized(protocol, where, headers={header: CUSTOM}) == {header.lower(): "key-of-mine"}


def test_an_authorization_of_ones_own_has_its_scheme():
    assert authorized("openai", headers={"authorization": CUSTOM}) == {
        "authorization": "Bearer key-of-mine"
    }


@pytest.mark.parametrize(
    ("target", "expected"),
    [
        ({"auth_header": "api-key"}, "auth_header: there is no key for it: set api_key_env"),
        (
            {"auth_header": "two words", "api_key_env": "MY_KEY"},
            "not a header (visible ASCII characters only)",
        ),
        ({"auth_header": "", "api_key_env": "MY_KEY"}, "at least 1 character"),
        ({"auth_header": "host", "api_key_env": "MY_KEY"}, "the transport sets it: leave it out"),
        (
            {"auth_header": "Api-Key", "api_key_env": "MY_KEY", "headers": {"api-key": CUSTOM}},
            "headers.api-key: auth_header puts the key there: leave out one of them",
        ),
    ],
)
def test_what_cannot_be_is_refused(target, expected):
    with pytest.raises(ValidationError) as refused:
        Target(protocol="openai", url=ELSEWHERE, **target)

    assert expected in str(refused.value)


URLS = [
    (
        "openai",
        "https://api.openai.com/v1/responses",
        "the Responses API has other requests and events",
    ),
    (
        "openai",
        "http://h/openai/v1/responses?api-version=preview",
        "the Responses API has other requests",
    ),
    ("openai", "http://h/v1/completions", "completions without messages are another API"),
    ("openai", "http://h/v1/messages", 'set target.protocol = "anthropic"'),
    ("openai", "http://h/v1/embeddings/", "embeddings are no chat completions"),
    ("anthropic", "https://bedrock-runtime.us-east-1.amazonaws.com", "Bedrock signs requests"),
    (
        "anthropic",
        "https://bedrock-runtime-fips.us-gov-west-1.amazonaws.com/model/x",
        "Bedrock signs requests",
    ),
    ("anthropic", "https://us-east5-aiplatform.googleapis.com/v1", "Vertex AI has other paths"),
    ("anthropic", "http://h/v1/chat/completions", 'set target.protocol = "openai"'),
]


@pytest.mark.parametrize(("protocol", "url", "expected"), URLS)
def test_addresses_of_other_apis_are_refused_with_what_to_use(protocol, url, expected):
    with pytest.raises(ValidationError) as refused:
        Target(protocol=protocol, url=url)

    assert expected in str(refused.value)
    assert Target(protocol="sse", url=url).protocol == "sse"


@pytest.mark.parametrize(
    ("protocol", "url"),
    [
        ("openai", "http://h/v1/chat/completions"),
        ("openai", "http://responses/v1"),
        ("openai", "http://h/responses/v1"),
        ("openai", "https://bedrock-runtime.us-east-1.amazonaws.com/openai/v1"),
        ("anthropic", "https://bedrock-runtime.example.com"),
        ("anthropic", "https://h/v1/messages"),
        ("anthropic", "https://h.services.ai.azure.com/anthropic"),
    ],
)
def test_addresses_that_only_look_like_them_are_not(protocol, url):
    assert Target(protocol=protocol, url=url).url == url


@pytest.mark.parametrize("protocol", ["anthropic", "sse"])
def test_only_chat_completions_have_two_names_for_the_limit(protocol):
    with pytest.raises(ValidationError) as refused:
        Target(protocol=protocol, url=ELSEWHERE, max_tokens_field="max_completion_tokens")

    assert f"max_tokens_field: does not apply with protocol = '{protocol}'" in str(refused.value)
