"""Headers and fields of the body that a scenario adds to the requests of the SDKs.

`{env = "NAME"}` is a secret out of the environment. `{request_id}` and other placeholders in texts are filled in for each
call, once: braces in the values are no placeholders.
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
EXACT_KEYS = frozenset[str]().union(*EXACT.values())
OF_MODEL = "owned_by"
# Engines that cache without marks, and may refuse a request that has some.
CACHES_BY_ITSELF = frozenset({"vllm", "sglang", "llamacpp"})
ENGINE_OF = {"vllm": "vllm", "sglang": "sglang", "llamacpp": "llama.cpp", "tailgauge": "vllm"}
_PLACEHOLDER = re.compile(r"\{\{|\}\}|\{([A-Za-z_][A-Za-z0-9_]*)\}")  # or a doubled brace
_TRANSPORT_HEADERS = (
    "host",
    "content-length",
    "transfer-encoding",
    "connection",
    "expect",
    "te",
    "trailer",
    "upgrade",
    "keep-alive",
    "proxy-connection",
)
# Headers that a scenario may not add, with what to do instead.
_INSTEAD = {
    **dict.fromkeys(_TRANSPORT_HEADERS, "the transport sets it: leave it out"),
    "accept-encoding": "chunks are timed as they come, so nothing may be compressed: leave it out",
    "x-client-request-id": "it carries the run's own id of the call: use another name, with {call_id}",
}
KEY_HEADERS = ("authorization", "x-api-key", "api-key", "proxy-authorization")


def variable_of(value: Any, place: str = "") -> str | None:
    """Return the variable that `{env = "NAME"}` names; None for any other value.

    What the variable holds is a secret from then on. Raises ValueError, with the place, for a wrong name.
    """
    if not isinstance(value, Mapping) or set(value) != {"env"}:
        return None
    name = value["env"]
    if not isinstance(name, str) or not re.fullmatch(VARIABLE, name):
        raise ValueError(
            f'{place}: expected {{env = "NAME"}} with the name of an environment variable'
        )
    name_secret(name)
    return name


def variables(tree: Any, place: str) -> Iterator[tuple[str, str]]:
    """Yield every `{env = "NAME"}` in a tree: its dotted key below `place`, and the variable."""
    name = variable_of(tree, place)
    if name is not None:
        yield place, name
    elif isinstance(tree, Mapping):
        for key, value in tree.items():
            yield from variables(value, f"{place}.{key}".removeprefix("."))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from variables(value, place)


def from_environment(variable: str, reason: str, kind: str = "secret") -> str:
    """Return a secret. Raises TargetError where the variable is missing, with the reason for which it is needed."""
    value = os.environ.get(variable, "").strip()
    if not value:
        missing = f"the environment variable {variable} is not set ({reason})"
        raise TargetError(f"no {kind}: {missing}. Set it and run again")
    if any(ord(c) < 33 or ord(c) > 126 for c in value):
        raise TargetError(
            f"the {kind} in {variable} has characters that no key has (spaces, line ends?)"
        )
    name_secret(variable)
    return value


def texts(tree: Any) -> Iterator[str]:
    """Yield every text of a tree that may have placeholders."""
    if isinstance(tree, str):
        yield tree
    elif isinstance(tree, Mapping) and variable_of(tree) is None:
        for key, value in tree.items():
            yield from (key, *texts(value))
    elif isinstance(tree, list | tuple):
        for value in tree:
            yield from texts(value)


def check_placeholders(text: str, known_names: Collection[str]) -> None:
    """Raise ValueError for a placeholder that nothing fills."""
    for name in filter(None, _PLACEHOLDER.findall(text)):
        if name not in known_names:
            listed = ", ".join(f"{{{known_name}}}" for known_name in known_names)
            raise ValueError(
                f"{{{name}}} is not a placeholder; use one of {listed}, or {{{{ for a brace"
            )
        if f"{{{name}}}" == MAX_TOKENS and text != MAX_TOKENS:
            raise ValueError('{max_tokens} is a number: write it as "{max_tokens}", alone')


def check_header_name(name: str | None) -> str | None:
    """Raise ValueError for a name that no header can have, or that of a header that the harness sets."""
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
    """Return the headers of a scenario as they are; raise ValueError for headers that cannot be added to a request.

    The values of variables of the environment become secrets, which are redacted from then on. Keys must be
    such variables.
    """
    for name, header_value in value.items():
        lower_name = name.lower()
        is_secret = variable_of(header_value, name) is not None
        text = "" if is_secret else header_value
        if not isinstance(text, str):
            raise ValueError(f'{name}: expected text in quotes, or {{env = "NAME"}}')  # noqa: TRY004 - pydantic's
        if not re.fullmatch(HEADER, name) or not re.fullmatch(r"[ -~]*", text):
            raise ValueError(f"{name}: not a header (visible ASCII characters only)")
        # The harness sets this header itself; the message says what to use instead.
        if lower_name in _INSTEAD:
            raise ValueError(f"{name}: {_INSTEAD[lower_name]}")
        if lower_name in KEY_HEADERS and not is_secret:
            raise ValueError(f'{name}: keys come from the environment: write {{env = "NAME"}}')
        check_placeholders(text, OF_A_CALL)
    if len({name.lower() for name in value}) < len(value):
        raise ValueError("names a header twice: upper and lower case are the same")
    return value


def check_body(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for a body that is no JSON, or has an unknown placeholder or a wrong variable."""
    list(variables(value, ""))  # raises for a wrong variable
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
    """Raise ValueError for a key of a body that the harness sets.

    `set_elsewhere`: those keys, dotted within another key, with what to use instead. `table`: of the scenario.
    """
    for key, instead in set_elsewhere.items():
        value = body
        names = key.split(".")
        while names and isinstance(value, Mapping) and names[0] in value:
            value = value[names.pop(0)]
        # A key is there too if the user gives something else than a table on the way to it.
        if not names or not isinstance(value, Mapping):
            raise ValueError(f"{table}.body.{key}: the harness sets it: {instead}")


def merged(base: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """Return both trees as one: tables are merged, any other value of the overrides replaces that of the base."""
    tree = dict(base)
    for key, value in overrides.items():
        base_value = tree.get(key)
        if isinstance(value, Mapping) and isinstance(base_value, Mapping):
            tree[key] = merged(base_value, value)
        else:
            tree[key] = value
    return tree


def filled(tree: Any, values: Mapping[str, Any]) -> Any:
    """Return the tree with its placeholders filled in."""
    if isinstance(tree, str):
        if tree == MAX_TOKENS and "max_tokens" in values:
            return values["max_tokens"]
        # A doubled brace stands for one brace.
        return _PLACEHOLDER.sub(lambda match: values[match[1]] if match[1] else match[0][0], tree)
    if isinstance(tree, Mapping):
        return {filled(key, values): filled(value, values) for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [filled(value, values) for value in tree]
    return tree


def with_secrets(tree: Any, place: str) -> Any:
    """Return the tree with the values of the variables that it names. Their braces are doubled: they are no placeholders."""
    name = variable_of(tree)
    if name is not None:
        return from_environment(name, f"{place} names it").replace("{", "{{").replace("}", "}}")
    if isinstance(tree, Mapping):
        return {key: with_secrets(value, f"{place}.{key}") for key, value in tree.items()}
    if isinstance(tree, list | tuple):
        return [with_secrets(value, place) for value in tree]
    return tree


def values_of(
    call_id: str, request_id: int, traffic: str, model: str, max_tokens: int
) -> dict[str, str | int]:
    """Return the values of the placeholders for one call. The id of a session is that of its first request."""
    return {
        "request_id": f"{request_id}",
        "session_id": f"{request_id - request_id % TURNS}",
        "traffic": traffic,
        "arrival": f"{request_id // TURNS}",
        "call_id": call_id,
        "model": model,
        "max_tokens": max_tokens,
    }


class Additions:
    """Headers and fields that are added to the calls of one traffic table at one target."""

    def __init__(self, headers: Mapping[str, str], body: Mapping[str, Any]) -> None:
        self.names = frozenset(name.lower().encode() for name in headers)
        self.changes_body = bool(body)
        lines = "".join(f"\r\n{name}: {_scheme(name, value)}" for name, value in headers.items())
        # The placeholders become those of Python's % operator, which is fast.
        self._lines = _PLACEHOLDER.sub(
            lambda match: f"%({match[1]})s" if match[1] else match[0][0], lines.replace("%", "%%")
        )
        self._has_names = "%(traffic)s" in self._lines or "%(model)s" in self._lines
        self._body = body
        self._is_fixed = not any(map(_PLACEHOLDER.search, texts(body)))

    def lines(self, values: Mapping[str, Any]) -> bytes:
        """Return the headers as the lines of a request, each behind a line end."""
        # Names of tables and models may have characters that a header cannot.
        if self._has_names:
            names = {key: re.sub(r"[^ -~]", "?", values[key]) for key in ("traffic", "model")}
            values = {**values, **names}
        return (self._lines % values).encode("ascii")

    def body(self, base: Mapping[str, Any], values: Mapping[str, Any]) -> Mapping[str, Any]:
        """Return a body with the fields that are added."""
        if not self.changes_body:
            return base
        if self._is_fixed:
            return merged(base, self._body)
        return merged(base, filled(self._body, values))


class Current(NamedTuple):
    """The call that is being built; the transport below the SDK reads it."""

    added: Additions | None
    values: Mapping[str, Any]  # of the placeholders
    # Returns the parts of a body that get the added fields.
    entries: Callable[[dict[str, Any]], list[dict[str, Any]]]


CURRENT: ContextVar[Current | None] = ContextVar("current", default=None)


class TableAdds(NamedTuple):
    """Headers, fields and settings of a traffic table from which its additions are made."""

    headers: Mapping[str, Any] = {}
    body: Mapping[str, Any] = {}
    has_sessions: bool = False
    is_exact: bool = False


def additions(target: Any, table: TableAdds, engine: str | None) -> Additions | None:
    """Return the additions of a traffic table's calls at a target, where the table's values replace the target's.

    None: there are none. Raises TargetError for a variable that is not set.
    """
    headers: dict[str, tuple[str, str]] = {}  # by lower name, so that later ones replace
    if table.has_sessions and target.session_header:
        headers[target.session_header.lower()] = (target.session_header, "{session_id}")
    for name, value in with_secrets(target.headers, "target.headers").items():
        headers[name.lower()] = (name, value)
    for name, value in with_secrets(table.headers, "traffic.headers").items():
        headers[name.lower()] = (name, value)
    target_body = with_secrets(target.body, "target.body")
    body = merged(target_body, with_secrets(table.body, "traffic.body"))
    if table.is_exact and engine is not None:
        body = merged(body, EXACT[engine])
    if not headers and not body:
        return None
    return Additions(dict(headers.values()), body)


def _scheme(name: str, value: str) -> str:
    """Return the value of a header; a key in `authorization`, which has no space, gets a scheme before it."""
    if name.lower() == "authorization":
        return f"Bearer {value}"
    return value
