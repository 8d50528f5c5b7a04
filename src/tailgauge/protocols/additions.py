"""What a scenario adds to the requests that the SDKs build: headers, and fields of the body.

`{env = "NAME"}` is a secret out of the environment. In texts `{request_id}` and its like are filled in for each call, once:
what is filled in is no template.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Collection, Iterator, Mapping
from contextvars import ContextVar
from typing import Annotated, Any, Literal, NamedTuple

from pydantic import AfterValidator

from tailgauge.errors import TargetError
from tailgauge.redaction import name_secret
from tailgauge.rows.schema import TURNS

VARIABLE = r"^[A-Za-z_][A-Za-z0-9_]*$"
HEADER = r"[A-Za-z0-9!#$%&'*+.^_`|~-]+"
OF_A_CALL = ("model", "call_id", "request_id", "session_id", "traffic", "arrival")
MAX_TOKENS = "{max_tokens}"  # a number, which stands alone
# What makes an engine generate as many tokens as it may; sources: vLLM's and SGLang's ChatCompletionRequest, llama.cpp's
# server README. And what each names in its list of models; the simulated endpoint takes what vLLM takes.
Engine = Literal["vllm", "sglang", "llama.cpp"]
EXACT: Mapping[str, Mapping[str, Any]] = {
    "vllm": {"ignore_eos": True, "min_tokens": MAX_TOKENS},
    "sglang": {"ignore_eos": True, "min_tokens": MAX_TOKENS},
    "llama.cpp": {"ignore_eos": True, "n_predict": MAX_TOKENS},
}
EXACT_KEYS = frozenset(key for fields in EXACT.values() for key in fields)
OF_MODEL = "owned_by"
CACHES_BY_ITSELF = frozenset(
    {"vllm", "sglang", "llamacpp"}
)  # and may refuse a request with cache marks
ENGINE_OF = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "tailgauge": "vllm"}
_MARK = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")
_OF_THE_TRANSPORT = "the transport sets it: leave it out"
_INSTEAD = {
    **dict.fromkeys(("host", "content-length", "transfer-encoding", "connection", "expect", "te",
                     "trailer", "upgrade", "keep-alive", "proxy-connection"), _OF_THE_TRANSPORT),
    "accept-encoding": "chunks are timed as they come, so nothing may be compressed: leave it out",
    "x-client-request-id": "it carries the run's own id of the call: use another name, with {call_id}",
}  # fmt: skip
KEY_HEADERS = ("authorization", "x-api-key", "api-key", "proxy-authorization")


def variable_of(value: Any, at: str = "") -> str | None:
    """The variable that `{env = "NAME"}` names, whose value is a secret from then on; None of any other value."""
    if not isinstance(value, Mapping) or set(value) != {"env"}:
        return None
    name = value["env"]
    if not isinstance(name, str) or not re.fullmatch(VARIABLE, name):
        raise ValueError(
            f'{at}: expected {{env = "NAME"}} with the name of an environment variable'
        )
    name_secret(name)
    return name


def variables(tree: Any, at: str) -> Iterator[tuple[str, str]]:
    """Every `{env = "NAME"}` in a tree: its key, and the variable."""
    name = variable_of(tree, at)
    if name is not None:
        yield at, name
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from variables(value, f"{at}.{key}".removeprefix("."))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from variables(value, at)


def from_environment(variable: str, why: str, kind: str = "secret") -> str:
    """A secret. Raises TargetError naming the variable that is missing."""
    value = os.environ.get(variable, "").strip()
    if not value:
        missing = f"the environment variable {variable} is not set ({why})"
        raise TargetError(f"no {kind}: {missing}. Set it and run again")
    if any(ord(c) < 33 or ord(c) > 126 for c in value):
        raise TargetError(
            f"the {kind} in {variable} has characters that no key has (spaces, line ends?)"
        )
    name_secret(variable)
    return value


def texts(tree: Any) -> Iterator[str]:
    """Every text of a tree that may have placeholders."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping) and variable_of(tree) is None:
        for key, value in tree.items():
            yield from (key, *texts(value))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from texts(value)


def check_placeholders(text: str, known: Collection[str]) -> None:
    """Raise ValueError for a placeholder that nothing fills."""
    for name in filter(None, _MARK.findall(text)):
        if f"{{{name}}}" == MAX_TOKENS and name in known:
            if text != MAX_TOKENS:
                raise ValueError('{max_tokens} is a number: write it as "{max_tokens}", alone')
        elif name not in known:
            listed = ", ".join(f"{{{one}}}" for one in known)
            raise ValueError(
                f"{{{name}}} is not a placeholder; use one of {listed}, or {{{{ for a brace"
            )


def check_header_name(name: str | None) -> str | None:
    """Raise ValueError for what is no name of a header, or that of one that the harness sets."""
    if name is not None:
        if not re.fullmatch(HEADER, name):
            raise ValueError("not a header (visible ASCII characters only)")
        if name.lower() in _INSTEAD:
            raise ValueError(_INSTEAD[name.lower()])
    return name


def names_key(headers: Mapping[str, Any]) -> bool:
    """Return whether one of these headers authorizes the call."""
    return any(name.lower() in KEY_HEADERS for name in headers)


def check_headers(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for what cannot be added as a header."""
    for name, given in value.items():
        low = name.lower()
        text = "" if variable_of(given, name) else given
        if not isinstance(text, str):
            raise ValueError(f'{name}: expected text in quotes, or {{env = "NAME"}}')  # noqa: TRY004 - pydantic's
        if not re.fullmatch(HEADER, name) or not re.fullmatch(r"[ -~]*", text):
            raise ValueError(f"{name}: not a header (visible ASCII characters only)")
        if low in _INSTEAD:
            raise ValueError(f"{name}: {_INSTEAD[low]}")
        if low in KEY_HEADERS and text is given:
            raise ValueError(f'{name}: keys come from the environment: write {{env = "NAME"}}')
        check_placeholders(text, OF_A_CALL)
    if len({name.lower() for name in value}) < len(value):
        raise ValueError("names a header twice: upper and lower case are the same")
    return value


def check_body(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for what is no JSON, or names something that is not there."""
    list(variables(value, ""))
    try:
        json.dumps(value, allow_nan=False)
    except (TypeError, ValueError) as error:
        raise ValueError(f"expected what JSON has: {error}. Write a date as text") from None
    for text in texts(value):
        check_placeholders(text, (*OF_A_CALL, "max_tokens"))
    return value


Headers = Annotated[Mapping[str, Any], AfterValidator(check_headers)]
Body = Annotated[Mapping[str, Any], AfterValidator(check_body)]


def refuse_fields(body: Mapping[str, Any], set_elsewhere: Mapping[str, str], table: str) -> None:
    """Raise ValueError for a key, dotted where it is within another, that the harness sets; `set_elsewhere`: what to use instead."""
    for key, instead in set_elsewhere.items():
        at = body
        names = key.split(".")
        while names and isinstance(at, Mapping) and names[0] in at:
            at = at[names.pop(0)]
        if not names or not isinstance(at, Mapping):
            raise ValueError(f"{table}.body.{key}: the harness sets it: {instead}")


def merged(base: Mapping[str, Any], over: Mapping[str, Any]) -> dict[str, Any]:
    """Both trees as one; where both have a value, the second's, and where both are tables, theirs merged."""
    out = dict(base)
    for key, value in over.items():
        old = out.get(key)
        out[key] = (
            merged(old, value) if isinstance(value, Mapping) and isinstance(old, Mapping) else value
        )
    return out


def filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """The tree with its placeholders filled in."""
    if isinstance(tree, str):
        if tree == MAX_TOKENS and "max_tokens" in values:
            return values["max_tokens"]
        return _MARK.sub(lambda found: values[found[1]] if found[1] else found[0][0], tree)
    if isinstance(tree, Mapping):
        return {filled(key, values): filled(value, values) for key, value in tree.items()}
    return [filled(value, values) for value in tree] if isinstance(tree, list | tuple) else tree


def with_secrets(tree: Any, at: str) -> Any:
    """The tree with the values of the variables that it names, which are no templates."""
    name = variable_of(tree)
    if name is not None:
        return from_environment(name, f"{at} names it").replace("{", "{{").replace("}", "}}")
    if isinstance(tree, Mapping):
        return {key: with_secrets(value, f"{at}.{key}") for key, value in tree.items()}
    return [with_secrets(value, at) for value in tree] if isinstance(tree, list | tuple) else tree


def values_of(
    call_id: str, request_id: int, traffic: str, model: str, max_tokens: int
) -> dict[str, str | int]:
    """What the placeholders of one call stand for. A request's session begins with its arrival."""
    return {
        "request_id": f"{request_id}", "session_id": f"{request_id - request_id % TURNS}", "traffic": traffic,
        "arrival": f"{request_id // TURNS}", "call_id": call_id, "model": model, "max_tokens": max_tokens,
    }  # fmt: skip


class Additions:
    """What is added to the calls of one traffic table at one target."""

    def __init__(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
        self.names = frozenset(name.lower().encode() for name in headers)
        self.changes_body = bool(body)
        lines = "".join(f"\r\n{name}: {_scheme(name, value)}" for name, value in headers.items())
        self._lines = _MARK.sub(
            lambda found: f"%({found[1]})s" if found[1] else found[0][0], lines.replace("%", "%%")
        )
        self._has_names = "%(traffic)s" in self._lines or "%(model)s" in self._lines
        self._body = body
        self._is_fixed = not any(map(_MARK.search, texts(body)))

    def lines(self, values: Mapping[str, Any]) -> bytes:
        """The headers, each behind a line's end."""
        if self._has_names:  # which may have any characters
            values = {
                **values,
                **{key: re.sub(r"[^ -~]", "?", values[key]) for key in ("traffic", "model")},
            }
        return (self._lines % values).encode("ascii")

    def body(self, base: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        """A body with what is added."""
        if not self.changes_body:
            return base
        return merged(base, self._body if self._is_fixed else filled(self._body, values))


class Current(NamedTuple):
    """The call that is being built, for what is under its SDK."""

    added: Additions | None
    values: Mapping[str, Any]
    entries: Callable[[dict[str, Any]], list[dict[str, Any]]]  # of a body, those that are added to


CURRENT: ContextVar[Current | None] = ContextVar("current", default=None)


class TableAdds(NamedTuple):
    """What a traffic table says of this."""

    headers: Mapping[str, Any] = {}
    body: Mapping[str, Any] = {}
    has_sessions: bool = False
    is_exact: bool = False


def additions(target: Any, table: TableAdds, engine: str | None) -> Additions | None:
    """What calls of a traffic table get at a target: the table's values over the target's; None: nothing.

    Raises TargetError for a variable that is not set.
    """
    session = table.has_sessions and target.session_header
    named: dict[str, tuple[str, str]] = {}
    of_session = {target.session_header: "{session_id}"} if session else {}
    for at, headers in (
        ("target", of_session),
        ("target", target.headers),
        ("traffic", table.headers),
    ):
        for name, value in with_secrets(headers, f"{at}.headers").items():
            named[name.lower()] = name, value
    body = merged(
        with_secrets(target.body, "target.body"), with_secrets(table.body, "traffic.body")
    )
    if table.is_exact and engine is not None:
        body = merged(body, EXACT[engine])
    return Additions(dict(named.values()), body) if named or body else None


def _scheme(name: str, value: str) -> str:
    """A key has no space, the header of keys has a scheme before it."""
    return f"Bearer {value}" if name.lower() == "authorization" else value
