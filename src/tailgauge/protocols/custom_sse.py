"""A user-defined stream of server-sent events, as `target.sse` describes it; no SDK.

The scenario holds all that is particular to an application. The stream is truncated where its end mark is missing.
What the application does not report (usage, model) stays null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import AfterValidator, Field, model_validator

from tailgauge.call import JOB_CANCEL, JOB_FETCH, JOB_POLL, JOBS, MESSAGE, RESUMPTION, Call, Prompt
from tailgauge.protocols import additions
from tailgauge.protocols.additions import OF_A_CALL
from tailgauge.protocols.decoder import KIND_CODE, MAX_NAME, StreamDecoder, error_of
from tailgauge.protocols.protocol import PLACEHOLDER_KEY, Opened, TargetSettings, WireProtocol
from tailgauge.redaction import shown
from tailgauge.rows.schema import TEXT
from tailgauge.table import Table

if TYPE_CHECKING:
    import httpx2

_TEXT = KIND_CODE[TEXT]
_HEADERS = {"accept": "text/event-stream", "accept-encoding": "identity"}
_OF_JOBS = {"accept": "application/json", "prefer": "respond-async"}
_METHODS = {JOB_POLL: "GET", JOB_FETCH: "GET", JOB_CANCEL: "DELETE"}
_PLACEHOLDERS = ("prompt", *OF_A_CALL, "max_tokens")
End = Literal["ok", "server_error", "client_error", "timeout", "cancelled"]
_STATES: Mapping[str, End] = {
    "succeeded": "ok", "completed": "ok", "done": "ok", "failed": "server_error", "error": "server_error",
    "expired": "timeout", "cancelled": "cancelled", "canceled": "cancelled",
}  # fmt: skip


def check_pointer(value: str) -> str:
    """Raise ValueError for what is no JSON pointer."""
    if value and not value.startswith("/"):
        raise ValueError("must be a JSON pointer such as /choices/0/text, or empty")
    return value


def check_template(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for a body that does not carry the prompt, or names something that is not there."""
    list(additions.variables(value, ""))
    for text in additions.texts(value):
        additions.check_placeholders(text, _PLACEHOLDERS)
    if not any("{prompt}" in text for text in additions.texts(value)):
        raise ValueError("expected {prompt} somewhere: without it every call would send the same")
    return value


Pointer = Annotated[str, AfterValidator(check_pointer)]
Template = Annotated[Mapping[str, Any], AfterValidator(check_template)]


class SseJobs(Table):
    """Jobs of the application, with `pattern = "job"`: POST submits, GET polls and fetches, DELETE cancels."""

    url: Pointer | None = None
    """pointer to the job's URL, or its name below `path`, in the answer to the submission; default its `Location` header"""
    state: Pointer = "/status"
    """pointer to the job's state"""
    states: Mapping[str, End] = Field(_STATES)
    """states in which a job has ended, and how its request ended then; any other is under way"""
    result_url: Pointer | None = None
    """pointer to the URL of the result; default: the answer that says `ok` has the result"""


class SseSettings(Table):
    """A user-defined stream of server-sent events, with `protocol = "sse"`.

    Pointers are JSON pointers (RFC 6901) into an event's data; an empty one means the data itself, as text.
    """

    path: str = Field("/", pattern=r"^/\S*$")
    """path of the call, after the target's URL"""
    body: Template = Field({"prompt": "{prompt}", "max_tokens": "{max_tokens}"})
    """the JSON body; `{prompt}` and what `target.body` knows are replaced within its strings, and `"{max_tokens}"` by the number; a secret is `{env = "NAME"}`"""
    token_event: str = ""
    """name of the event with content; empty: an event without a name"""
    text: Pointer = ""
    """pointer to the content's text in that event"""
    done_event: str | None = None
    """name of the event that ends the answer"""
    done_data: str | None = "[DONE]"
    """data of the event that ends the answer"""
    error_event: str = "error"
    """name of the event that reports a failure"""
    status_event: str | None = None
    """name of an event that starts a phase, such as retrieval"""
    status_name: Pointer = ""
    """pointer to the phase's name in it"""
    citation_event: str | None = None
    """name of an event with a citation; counted"""
    input_tokens: Pointer | None = None
    """pointer to a count of input tokens, in any event"""
    output_tokens: Pointer | None = None
    """pointer to a count of output tokens, in any event"""
    jobs: SseJobs = SseJobs()

    @model_validator(mode="after")
    def _ends(self) -> SseSettings:
        if self.done_event is None and self.done_data is None:
            raise ValueError("done_event or done_data is needed: else a complete stream looks like a cut one")
        return self


class CustomSse(WireProtocol):
    """The protocol of one application."""

    name = "sse"
    summary = "user-defined server-sent events, see `target.sse`"
    settings_type = SseSettings
    obeys_max_tokens = False
    offers = frozenset({JOBS, RESUMPTION})
    settings: SseSettings

    def __init__(self, target: TargetSettings, url: str) -> None:
        super().__init__(target, url)
        sse: SseSettings = self.settings
        self._token = sse.token_event.encode() or b"message"
        self._error = sse.error_event.encode()
        self._done, self._done_data = _encoded(sse.done_event), _encoded(sse.done_data)
        self._status, self._citation = _encoded(sse.status_event), _encoded(sse.citation_event)
        self._text, self._status_name = steps(sse.text), steps(sse.status_name)
        usage = {"input_tokens": sse.input_tokens, "output_tokens": sse.output_tokens}
        self._usage = {name: steps(at) for name, at in usage.items() if at}
        self._parses = bool(self._text or self._status_name or self._usage)

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """The HTTP client, with the address and the key for it."""
        import httpx2

        http_client.base_url, _, query = base_url.partition("?")
        joint = "&" if "?" in self.settings.path else "?"
        self._path = self.settings.path + (joint + query if query else "")
        http_client.headers = httpx2.Headers({**_HEADERS, **bearer(key)})
        self._body = additions.with_secrets(self.settings.body, "target.sse.body")
        return http_client

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> Opened:
        """One call; entering it sends the request."""
        current = additions.CURRENT.get()
        values = current.values if current else additions.values_of(call_id, 0, "", model, call.max_tokens)
        headers = {"x-client-request-id": call_id} | ({} if call.kind == MESSAGE else _OF_JOBS)
        if call.event_ids is not None and call.event_ids.last_id:
            headers["last-event-id"] = call.event_ids.last_id
        method, url, more = "POST", self._path, {}
        if call.kind in _METHODS:
            method, url = _METHODS[call.kind], self._job_url(str(sdk.base_url), call.job or "")
        else:
            more = {"json": additions.filled(self._body, {**values, "prompt": flat(call.prompt)})}
        opened: Opened = sdk.stream(method, url, headers=headers, **more)
        return opened

    def _job_url(self, base_url: str, job: str) -> str:
        """Where a job is: a URL, or a name below the path of the calls; never on another host, which would get the key."""
        url = urljoin(f"{base_url.rstrip('/')}{self.settings.path.rstrip('/')}/", job)
        if urlsplit(url)[:2] != urlsplit(base_url)[:2]:
            raise ValueError(f"the target names a URL of another host for its job: {shown(job, 200)}")
        return url

    def body(self, call: Call, model: str) -> None:
        """Not known beforehand: the scenario may put anything anywhere."""

    def on_job(self, decoder: StreamDecoder, body: bytes) -> None:
        """Decode the answer of a call about a job; `answer` becomes the fields of the pattern's `JobState`."""
        jobs, tree = self.settings.jobs, _tree(body)
        for counter, path in self._usage.items():
            decoder.count(**{counter: at(tree, path)})
        if decoder.kind in {JOB_FETCH, JOB_CANCEL}:
            decoder.answer = ""
            return
        if decoder.kind == JOB_POLL and tree is None:
            raise ValueError("no JSON")
        state = at(tree, steps(jobs.state))
        ended = jobs.states.get(state) if isinstance(state, str) else None
        decoder.stop_reason = None if ended is None else shown(state, MAX_NAME)
        found = {"name": at(tree, steps(jobs.url or "")) if jobs.url else None, "ended": ended}
        where = None if jobs.result_url is None else at(tree, steps(jobs.result_url))
        decoder.answer = json.dumps(found | {"result": where, "is_fetched": jobs.result_url is None})

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of the stream."""
        decoder.seen()
        name = name or b"message"
        tree = _tree(data) if self._parses else None
        if self._citation is not None and decoder.citations is None:
            decoder.citations = 0
        if name == self._done or data == self._done_data:
            decoder.stop()
        elif name == self._error:
            decoder.error = decoder.error or error_of(_tree(data) or _text(data))
        elif name == self._token:
            if self._text and tree is None and data:
                raise ValueError("no JSON")
            decoder.content(_TEXT, (at(tree, self._text) if self._text else _text(data)) or "")
        elif name == self._status:
            decoder.phase(str(at(tree, self._status_name) if self._status_name else _text(data)))
        elif name == self._citation:
            decoder.citations = (decoder.citations or 0) + 1
        for counter, path in self._usage.items():
            decoder.count(**{counter: at(tree, path)})


def bearer(key: str) -> dict[str, str]:
    """The header that carries a key, where there is one."""
    return {} if key == PLACEHOLDER_KEY else {"authorization": f"Bearer {key}"}


def flat(prompt: Prompt) -> str:
    """The whole prompt as one text: system, then the conversation; one user's text is itself."""
    parts = [*prompt.system, *(part for message in prompt.messages for part in message.parts)]
    return "\n\n".join(part.text for part in parts)


def steps(pointer: str) -> tuple[str, ...]:
    """The steps of a JSON pointer; none for the data itself."""
    return tuple(step.replace("~1", "/").replace("~0", "~") for step in pointer.split("/")[1:])


def at(tree: Any, path: tuple[str, ...]) -> Any:
    """The value at a path; None without one, as in the many events without a usage."""
    for step in path:
        try:
            tree = tree[int(step)] if isinstance(tree, list) else tree[step]
        except (ValueError, TypeError, LookupError):
            return None
    return tree


def _encoded(text: str | None) -> bytes | None:
    return None if text is None else text.encode()


def _tree(data: bytes) -> Any:
    """The data as JSON; None where it is none."""
    try:
        return json.loads(data.decode())
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
