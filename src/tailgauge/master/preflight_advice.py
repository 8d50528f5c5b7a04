"""What to do about a target that failed the preflight, by what it answered: one sentence of advice.

The sentence on how it failed is made in progress.py.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from typing import Any
from urllib.parse import urljoin, urlsplit

from tailgauge import ends
from tailgauge import protocol_violations as violations
from tailgauge.address import is_loopback, unused_proxy
from tailgauge.plan.preflight import is_loading
from tailgauge.protocols.additions import names_key
from tailgauge.protocols.protocol import TargetSettings, at_provider
from tailgauge.protocols.table import PROTOCOLS, PROVIDERS
from tailgauge.rows import schema
from tailgauge.sanitize import plain
from tailgauge.transport.peer import HTTP, TLS
from tailgauge.vendors import REFUSAL, refused_limit_field

_READY_S = 120.0  # to wait for a target, in an advice
_LONGEST_READY_S = 3600.0
_TCP = "Is it running, and is the port right?"
_NOT_JSON = "not_json"
_GATEWAY = "gateway"
_OF_A_GATEWAY = "This is the error of a gateway or proxy in front of the target: is its backend up, and is the address right?"
_BY_KIND = {
    "tcp": _TCP,
    "dns": "Is the host name right?",
    "timeout": "No answer in time: is it still loading, or does a firewall block it?",
    "tls_certificate": "For a private certificate authority, set target.ca_file to its PEM file",
    "ca_file": "Set target.ca_file to a PEM file with the authority's certificate",
    "tls": "Does the target use TLS on this port? Without TLS use http://",
    "not_http": "The server does not use HTTP/1.1",
    "head_too_large": "The response head is too large: is this the right address?",
    "compressed": "The response is compressed although identity was requested: is there a proxy?",
    "closed": "Does the target use HTTP on this port, or does it need https://?",
    "not_an_event_stream": "The response is not an event stream: are path and protocol right?",
    _GATEWAY: _OF_A_GATEWAY,
    _NOT_JSON: "The response does not follow the protocol: are URL and protocol right?",
}
_NO_ANSWER = "It accepted the connection but did not answer: look at its log. To wait less: --set limits.attempt_deadline_s=10"
_UNREACHED = ("tcp", "dns", "timeout")
_OF_TLS = re.compile(
    rf"{TLS}|(?:HTTP request|request was sent).{{0,30}} to (?:an )?HTTPS", re.IGNORECASE
)
_MAX_URL = 300  # characters
_WHOLE = (
    "The response is JSON, not an event stream. If the endpoint cannot stream, set stream = false "
    "(--set 'traffic.*.stream=false'); else are path and protocol right?"
)
_PAGE = "The response is an HTML page: is --target the address of the API, or does a proxy or gateway answer?"
_BY_FIRST_CHARACTER = {"<": _PAGE, "{": _WHOLE}  # of a body that is no event stream
OTHER_BODIES = tuple(_BY_FIRST_CHARACTER.values())
_NO_MODEL = re.compile(
    r"model_not_(?:found|available)|unknown[_ ]model|invalid[_ ]model|no such model"
    r"|\bmodel\b.{0,120}?\b(?:not exist|not found|not (?:available|supported|loaded)|unavailable|unknown|deprecated|retired)",
    re.IGNORECASE | re.DOTALL,
)
_KEEP = "To keep its bytes, add --keep-answers 1"
_BROKEN = {
    schema.SERVER_ERROR: "The target reported this error inside its answer: look at its log",
    schema.STREAM_ERROR: "The target reported this error inside its answer: look at its log",
    schema.TRUNCATED: "The connection was closed before the end of the answer: look at the target's log",
}
_OTHER_PROTOCOL = 'For another API set target.protocol; for an application\'s own events protocol = "sse" and target.sse'
_MARKS = re.compile(r"prompt_cache_(?:breakpoint|options|key)|cache_control")
_NO_LIST = re.compile(
    r"content\b.{0,80}\b(?:string|str|text)\b|\b(?:string|str)\b.{0,80}\bcontent\b",
    re.IGNORECASE | re.DOTALL,
)
_TOO_LONG = re.compile(
    r"(?:maximum|max|model'?s?) (?:\w+ )?context|context[ _](?:length|window|size)|max_model_len"
    r"|prompt is too long|too many (?:input )?tokens",
    re.IGNORECASE,
)

_REFUSES = re.compile(REFUSAL, re.IGNORECASE)
_FIELDS = {  # that requests have, with what leaves them out
    "stream_options": "streamed calls need it to count tokens; only whole answers go without: --set 'traffic.*.stream=false'",
    **dict.fromkeys(("tools", "tool_choice"), "leave `tools` out of the traffic table"),
    **dict.fromkeys(
        ("reasoning_effort", "thinking", "chat_template_kwargs", "thinking_token_budget"),
        "--set 'traffic.*.thinking=off'",
    ),
    **dict.fromkeys(
        ("response_format", "output_config"), "leave `schema` out of the traffic table"
    ),
    **dict.fromkeys(
        ("ignore_eos", "min_tokens", "n_predict"), "leave `output` out of the traffic table"
    ),
}


def proxy_notes(urls: Iterable[str]) -> Iterator[str]:
    """Yield a note on a proxy of the environment for calls that leave this machine: they go without it."""
    for url in urls:
        name = unused_proxy(url)
        if name and not is_loopback(urlsplit(url).hostname or ""):
            yield f"note: {_about_a_proxy(name)}"
            return


def _about_a_proxy(name: str) -> str:
    return f"the environment variable {name} is not used: calls go straight to the target, and no setting names a proxy"


def advice(
    call: Mapping[str, Any],
    kind: str,
    text: str,
    protocol: str,
    target: TargetSettings | None,
    *,
    ready_s: float = 0.0,
) -> str:
    """Return what to set or to look at after a call of the preflight failed; empty where nothing is known.

    `call`: its facts, as the worker sent them. `kind`: its type of error; `text`: the target's own message, which is not
    trusted. `target`: its settings. `ready_s`: how long the run has waited for the target, 0 if it does not wait.
    """
    status = call["status"]
    if status is None and call["ended"] == schema.TIMEOUT:
        return _NO_ANSWER
    if kind == schema.REDIRECT:
        base = target.url if target is not None else ""
        return _about_a_redirect(call.get("url") or "", text, base)
    if status == 200:
        return _about_an_answer(call, kind, protocol)
    if is_loading(status, call["message"]):
        return f"Is it still loading? {_wait_longer(ready_s)}"
    if status in {400, 401, 403, 404, 405, 422}:
        return _about_a_rejection(call, kind, text, protocol, target)
    if status in {502, 504} or (status == 503 and kind == _NOT_JSON):
        kind = _GATEWAY
    advice_text = _about_a_port(call.get("url") or "", kind, text) or _BY_KIND.get(kind, "")
    if advice_text == _TCP:
        advice_text += f" If it is still loading: {_wait_longer(ready_s)}"
    return advice_text


def _wait_longer(ready_s: float) -> str:
    """Return how to wait for a target, longer than the run did."""
    if not ready_s:
        return f"--set limits.ready_s={_READY_S:g} waits for it"
    if ready_s >= _LONGEST_READY_S:
        return f"it was not ready within {ready_s:g} s"
    longer_s = min(_LONGEST_READY_S, 2 * ready_s)
    return f"--set limits.ready_s={longer_s:g} waits longer than the {ready_s:g} s of this run"


def _about_a_port(url: str, kind: str, text: str) -> str:
    """Return advice about what a port speaks, or about a proxy in front of it; empty where neither is known.

    `text`: the error, in which the transport says what it has found at the port.
    """
    parts = urlsplit(url)
    local_proxy = ""
    if is_loopback(parts.hostname or ""):
        local_proxy = unused_proxy(url)
    if HTTP in text and parts.scheme == "https":
        return f"Write http://{parts.netloc}"
    if _OF_TLS.search(text) and parts.scheme == "http":
        return f"Write https://{parts.netloc}"
    if "answers here" in text:
        return "Is the port right?"
    if kind == "closed" and parts.scheme == "http":
        return f"Is this a port of HTTP? If it needs TLS, write https://{parts.netloc}"
    if kind in _UNREACHED and local_proxy:
        question = _BY_KIND[kind]
        stop = "" if question.endswith("?") else "."
        return f"{question}{stop} {_about_a_proxy(local_proxy)}"
    return ""


def _about_a_rejection(
    call: Mapping[str, Any], kind: str, text: str, protocol: str, target: TargetSettings | None
) -> str:
    """Return advice about a 4xx: the key, the model, the path, or a field of the request.

    The order matters: a 403 or 404 may be about the model, which its text then names. Calls of an application name no
    model.
    """
    status = call["status"]
    if status == 401:
        return _about_the_key(target)
    if status == 400 and _OF_TLS.search(text):
        return _about_a_port(call.get("url") or "", kind, text)
    is_user_defined = _is_user_defined(protocol, target)
    if _NO_MODEL.search(f"{kind} {text}") and not (is_user_defined and status in {404, 405}):
        model = "this model"
        if call.get("model"):
            model = f"the model {plain(str(call['model']))!r}"
        return f"The target does not have {model}: choose another (--model NAME)"
    if status == 403:
        return _about_the_key(target)
    if status in {404, 405}:
        return _about_the_path(call.get("url") or "", protocol, is_user_defined=is_user_defined)
    return _about_a_field(call, text, protocol, target)


def _is_user_defined(protocol: str, target: TargetSettings | None) -> bool:
    """Return whether requests are those of an application, and name no model."""
    if PROTOCOLS[protocol].settings_type is None or target is None:
        return False
    return "{model}" not in str(target.model_dump().get(protocol))


def _about_the_path(url: str, protocol: str, *, is_user_defined: bool) -> str:
    """Return which path has nothing, and which base URL is usual."""
    if is_user_defined:
        address = plain(url, _MAX_URL) or "the target"
        call = f"Protocol {protocol} sends the body in target.{protocol}.body to {address}"
        return f"{call}: is target.{protocol}.path right? For an OpenAI API use --protocol openai"
    question = f"Is the base URL right, and is the protocol {protocol}?"
    parts = urlsplit(url)
    if not parts.netloc:
        return question
    base = f"{parts.scheme}://{parts.netloc}"
    return f"{question} {parts.path} was requested; the base URL is usually {base} or {base}/v1."


def _about_the_key(target: TargetSettings | None) -> str:
    if target is not None and names_key(target.headers):
        return "The key in target.headers was refused: set its variable to another key"
    if target is None or target.api_key_env is None:
        variable = _provider_variable(target)
        if variable:
            return f"The key in {variable} was refused: set that variable to another key"
        command = "export API_KEY=... and add --set target.api_key_env=API_KEY"
        return f"No key was sent. If the target needs one: {command}"
    header = target.auth_header or PROTOCOLS[target.protocol].key_header
    example = "x-api-key" if header == "authorization" else "authorization"
    problem = f"The key in {target.api_key_env} was refused, or is expected in another header than {header}"
    return f'{problem}: export another key in it, or set target.auth_header, such as "{example}" or "api-key"'


def _provider_variable(target: TargetSettings | None) -> str:
    """Return the variable with the key of a provider that is called at its own address, else an empty text."""
    if target is None:
        return ""
    provider = PROVIDERS.get(target.protocol)
    if provider is None or not at_provider(target.url, provider):
        return ""
    return provider.variable


def _about_a_redirect(url: str, location: str, base: str) -> str:
    """Return where calls should go: `url` is the call's, `base` the target's, and a location may be a path only."""
    new_url = plain(urljoin(url, location), _MAX_URL)
    if not new_url.startswith(("http://", "https://")):
        return "Calls do not follow redirects: give --target the address that answers"
    if new_url.rstrip("/") == url.rstrip("/"):
        return "Calls do not follow redirects, and --target cannot end in a slash: let the target answer without it"
    if base and url.startswith(base):
        new_url = new_url.removesuffix(url.removeprefix(base))
    return f"Calls do not follow redirects: write --target {new_url}"


def _about_a_field(
    call: Mapping[str, Any], text: str, protocol: str, target: TargetSettings | None
) -> str:
    """Return how to leave out the field that the target refuses, or how to send a smaller prompt; empty where that is not
    known.

    `text`: the target's message. The fields are those that we send by default and those of target.body.
    """
    if _MARKS.search(text) or (call.get("marked") and _NO_LIST.search(text)):
        setting = 'prompt_cache_key=""' if "prompt_cache_key" in text else "breakpoints=[]"
        return f"It takes no cache marks: --set 'traffic.*.cache.{setting}'"
    limit_fields = PROTOCOLS[protocol].limit_fields
    limit_field = refused_limit_field(text)
    if limit_fields and limit_field:
        alternatives = [name for name in limit_fields if name not in {limit_field, "none"}]
        options = " or ".join(f"--set target.max_tokens_field={name}" for name in alternatives)
        return f"It refuses {limit_field}: use {options}, or with `none` send no maximum of output tokens"
    if _TOO_LONG.search(text):
        return "Prompt and answer do not fit into the context of the model: use smaller sizes, such as --input-tokens 30 --output-tokens 20"
    if _REFUSES.search(text):
        remedies = dict(_FIELDS)
        if target is not None:
            remedies |= dict.fromkeys(target.body, "leave it out of target.body")
        for field, remedy in remedies.items():
            if re.search(rf"\b{re.escape(field)}\b", text):
                return f"It refuses the field {field}: {remedy}"
    return _BY_KIND.get(call["error_type"] or "", "")


def _about_an_event(text: str, protocol: str) -> str:
    """Return advice about an event that the protocol does not have."""
    name = violations.other_protocol(text)
    if name in PROTOCOLS:
        return f"The target streams as {name} does: use --protocol {name}"
    return f"This is no event of the protocol {protocol}. {_OTHER_PROTOCOL}. {_KEEP}"


def _about_an_answer(call: Mapping[str, Any], kind: str, protocol: str) -> str:
    """Return advice about a 200 that is no good answer, by the kind of error; empty where nothing is known.

    Which event was wrong is in the message of the call.
    """
    if kind == violations.MALFORMED_EVENT:
        return _about_an_event(call["message"] or "", protocol)
    if kind == "no_end_mark":
        is_of_an_application = PROTOCOLS[protocol].settings_type is not None
        end = "target.sse.end matched no event" if is_of_an_application else "there was no end mark"
        return f"The connection was closed and {end}. {_OTHER_PROTOCOL}. {_KEEP}"
    if kind == ends.NO_FINISH_REASON:
        seen_by_users = "SDK users get null, and nobody can tell whether it was cut short"
        return f"The answer names no finish reason: {seen_by_users}. {_KEEP}"
    if kind == ends.UNKNOWN_FINISH_REASON:
        reason = plain(call.get("stop_reason") or "")
        problem = "is not in the table of vendors, so that nobody can tell whether it was cut short"
        return f"The finish reason {reason!r} {problem}. {_KEEP}"
    broken = _BROKEN.get(call.get("ended", ""))  # a streak of rejections has no end of its own
    if broken and kind not in _BY_KIND:
        return f"{broken}. {_KEEP}"
    advice_text = _BY_KIND.get(kind, "")
    if kind == violations.NOT_AN_EVENT_STREAM:
        body = (call["message"] or "").lstrip()
        advice_text = _BY_FIRST_CHARACTER.get(body[:1], advice_text)
    return advice_text
