"""A user-defined stream of server-sent events, which `target.sse` describes; no SDK.

Everything particular to an application is in the scenario. A stream without its end mark is truncated. Values that the
application does not report (usage, model) stay null.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from itertools import combinations
from typing import TYPE_CHECKING, Annotated, Any, Literal
from urllib.parse import urljoin, urlsplit

from pydantic import AfterValidator, Field, model_validator

from tailgauge.call import JOB_CANCEL, JOB_FETCH, JOB_POLL, JOBS, MESSAGE, RESUMPTION, Call, Prompt
from tailgauge.protocols import additions
from tailgauge.protocols.additions import OF_A_CALL
from tailgauge.protocols.decoder import KIND_CODE, MAX_NAME, StreamDecoder, tree_of
from tailgauge.protocols.errors import calls_itself_error, looks_like_error
from tailgauge.protocols.pointers import steps, value_at
from tailgauge.protocols.protocol import Opened, TargetSettings, WireProtocol
from tailgauge.protocols.sse_events import (
    UNNAMED,
    CitationEvents,
    ContentEvents,
    EndEvents,
    ErrorEvents,
    ErrorReader,
    Matcher,
    PhaseEvents,
    Pointer,
    content_matcher,
)
from tailgauge.redaction import shown
from tailgauge.rows.schema import TEXT
from tailgauge.table import Table

if TYPE_CHECKING:
    import httpx2

_TEXT = KIND_CODE[TEXT]
_HEADERS = {"accept": "text/event-stream", "accept-encoding": "identity"}
_JOB_HEADERS = {"accept": "application/json", "prefer": "respond-async"}
_METHODS = {JOB_POLL: "GET", JOB_FETCH: "GET", JOB_CANCEL: "DELETE"}
_PLACEHOLDERS = ("prompt", *OF_A_CALL, "max_tokens")
End = Literal["ok", "server_error", "client_error", "timeout", "cancelled"]
_STATES: Mapping[str, End] = {
    "succeeded": "ok",
    "completed": "ok",
    "done": "ok",
    "failed": "server_error",
    "error": "server_error",
    "expired": "timeout",
    "cancelled": "cancelled",
    "canceled": "cancelled",
}


def check_template(value: Mapping[str, Any]) -> Mapping[str, Any]:
    """Raise ValueError for a body without the prompt, with an unknown placeholder or with a wrong variable."""
    list(additions.variables(value, ""))  # raises for a wrong variable
    for text in additions.texts(value):
        additions.check_placeholders(text, _PLACEHOLDERS)
    if not any("{prompt}" in text for text in additions.texts(value)):
        raise ValueError("expected {prompt} somewhere: without it every call would send the same")
    return value


Template = Annotated[Mapping[str, Any], AfterValidator(check_template)]


class SseJobs(Table):
    """Jobs, with `pattern = "job"`: POST submits, GET polls and fetches, DELETE cancels."""

    url: Pointer | None = None
    """pointer to the job's URL, or its name below `path`; default the `Location` header"""
    state: Pointer = "/status"
    """pointer to the job's state"""
    states: Mapping[str, End] = Field(_STATES)
    """final states with their outcome; any other is under way"""
    result_url: Pointer | None = None
    """pointer to the result's URL; default: the `ok` answer has the result"""


class SseSettings(Table):
    """An application's server-sent events, with `protocol = "sse"`.

    Pointers are JSON pointers (RFC 6901) into an event's data; empty: the data, as text.
    """

    path: str = Field("/", pattern=r"^/\S*$")
    """path after the target's URL"""
    body: Template = Field({"prompt": "{prompt}", "max_tokens": "{max_tokens}"})
    """JSON body, with `{prompt}` and the placeholders of `target.body`; a secret is `{env = "NAME"}`"""
    content: ContentEvents = ContentEvents()
    error: ErrorEvents = ErrorEvents()
    phase: PhaseEvents = PhaseEvents()
    citation: CitationEvents = CitationEvents()
    end: EndEvents = EndEvents()
    input_tokens: Pointer | None = None
    """pointer to input tokens, in any event"""
    output_tokens: Pointer | None = None
    """pointer to output tokens, in any event"""
    jobs: SseJobs = SseJobs()

    @model_validator(mode="after")
    def _distinct(self) -> SseSettings:
        matchers = _matchers(self)
        for kind, second_kind in combinations(matchers, 2):
            if matchers[kind].is_same_as(matchers[second_kind]):
                problem = f"{kind} and {second_kind} match the same events"
                raise ValueError(f"{problem}: tell them apart by event or where")
        return self


class CustomSse(WireProtocol):
    """The protocol of one application."""

    name = "sse"
    summary = "user-defined server-sent events, see `target.sse`"
    settings_type = SseSettings
    obeys_max_tokens = False
    takes_bare_names = True  # of LangServe, which ends an answer so
    offers = frozenset({JOBS, RESUMPTION})
    settings: SseSettings

    def __init__(self, target: TargetSettings, url: str) -> None:
        """Prepare what recognizes the application's events, and where their values stand, from `[target.sse]`.

        `url`: where the target is. Paths of values are the steps of JSON pointers; no steps: the data
        itself, as text.
        """
        super().__init__(target, url)
        sse: SseSettings = self.settings
        self._content = content_matcher(sse.content)
        self._end = Matcher(sse.end) if sse.end.is_set else None
        self._end_data = sse.end.data.encode()
        self._has_citations = sse.citation.is_set
        self._kinds = _matchers(sse)
        self._errors = ErrorReader(sse.error)
        self._text = steps(sse.content.text)
        self._phase_name = steps(sse.phase.name)
        counts = {"input_tokens": sse.input_tokens, "output_tokens": sse.output_tokens}
        self._counts = {name: steps(pointer) for name, pointer in counts.items() if pointer}
        self._content_is_json = bool(self._text) or sse.content.encoding == "json"
        has_conditions = any(matcher.conditions for matcher in self._kinds.values())
        has_pointers = self._content_is_json or self._phase_name or self._counts
        # Whether events are parsed at all: plain text may say anything, and a large event takes time.
        self._parses = bool(has_pointers or has_conditions or sse.end.where)

    def client(self, base_url: str, key: str, http_client: httpx2.Client) -> Any:
        """Return the HTTP client, with the address and the key for it."""
        import httpx2

        http_client.base_url, _, query = base_url.partition("?")
        self._path = self.settings.path
        if query:
            separator = "&" if "?" in self._path else "?"
            self._path += separator + query
        http_client.headers = httpx2.Headers({**_HEADERS, **self.key_headers(key)})
        self._body = additions.with_secrets(self.settings.body, "target.sse.body")
        return http_client

    def send(self, sdk: Any, call: Call, model: str, call_id: str) -> Opened:
        """Return one call; entering it sends the request.

        A message or a submission is a POST with the body of the scenario; a call about a job has another
        method and no body.
        """
        headers = {"x-client-request-id": call_id}
        if call.kind != MESSAGE:
            headers |= _JOB_HEADERS
        if call.event_ids is not None and call.event_ids.last_id:
            headers["last-event-id"] = call.event_ids.last_id
        opened: Opened
        if call.kind in _METHODS:
            job_url = self._job_url(str(sdk.base_url), call.job or "")
            opened = sdk.stream(_METHODS[call.kind], job_url, headers=headers)
            return opened
        values: Mapping[str, Any]
        # The placeholders of the call that is being built; without such a call those that any call has.
        current = additions.CURRENT.get()
        if current is None:
            values = additions.values_of(call_id, 0, "", model, call.max_tokens)
        else:
            values = current.values
        body = additions.filled(self._body, {**values, "prompt": flat(call.prompt)})
        opened = sdk.stream("POST", self._path, headers=headers, json=body)
        return opened

    def _job_url(self, base_url: str, job: str) -> str:
        """Return the URL of a job that the target names by a URL, or by a name below the path of the calls.

        Raises ValueError for another host, which would get the key.
        """
        url = urljoin(f"{base_url.rstrip('/')}{self.settings.path.rstrip('/')}/", job)
        if urlsplit(url)[:2] != urlsplit(base_url)[:2]:
            raise ValueError(
                f"the target names a URL of another host for its job: {shown(job, 200)}"
            )
        return url

    def body(self, call: Call, model: str) -> None:
        """Return None: the scenario may put anything anywhere, so that only `send` knows the body."""

    def on_job(self, decoder: StreamDecoder, body: bytes) -> None:
        """Decode the answer of a call about a job; `answer` becomes the fields of the pattern's `JobState`, as JSON.

        `ended`: the class in which the job has ended, None while it goes on. A fetched or cancelled job has
        no state any more. Raises ValueError for a poll that is no JSON.
        """
        jobs = self.settings.jobs
        tree = _tree(body)
        for counter, path in self._counts.items():
            decoder.count(**{counter: value_at(tree, path)})
        if decoder.kind in {JOB_FETCH, JOB_CANCEL}:
            decoder.answer = ""
            return
        if decoder.kind == JOB_POLL and tree is None:
            raise ValueError("no JSON")
        state = value_at(tree, steps(jobs.state))
        ended = None
        if isinstance(state, str):
            ended = jobs.states.get(state)
        decoder.stop_reason = None if ended is None else shown(state, MAX_NAME)
        name = None
        if jobs.url:
            name = value_at(tree, steps(jobs.url))
        result_url = None
        if jobs.result_url is not None:
            result_url = value_at(tree, steps(jobs.result_url))
        job_state = {
            "name": name,
            "ended": ended,
            "result": result_url,
            # Without a URL for the result, the answer to the last poll is the result.
            "is_fetched": jobs.result_url is None,
        }
        decoder.answer = json.dumps(job_state)

    def on_event(self, decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of the stream; the first table of `[target.sse]` that matches gives it its meaning.

        Token counts may stand in any event. The end may be an event of its own, or one that has content
        too.
        """
        decoder.seen()
        name = name or UNNAMED
        if self._has_citations and decoder.citations is None:
            # None would say that the application has no citations.
            decoder.citations = 0
        if data == self._end_data:
            _stop(decoder)
            return
        tree = self._parsed(name, data)
        is_end = self._end is not None and self._end.matches(name, tree)
        match self._kind(name, tree, is_end=is_end):
            case "error":
                decoder.error_event(self._error_of(tree, data))
            case "phase":
                decoder.phase(self._phase_of(tree, data))
            case "citation":
                decoder.citations = (decoder.citations or 0) + 1
            case "content":
                decoder.content(_TEXT, self._content_of(tree, data))
        for counter, path in self._counts.items():
            decoder.count(**{counter: value_at(tree, path)})
        if is_end:
            _stop(decoder)

    def _parsed(self, name: bytes, data: bytes) -> Any:
        """Return the event's JSON, or None. Raises ValueError where the content should be in JSON and there is none."""
        is_content_by_name = name == (self._content.name or UNNAMED)
        if not self._parses and is_content_by_name:
            return None
        tree = _tree(data)
        if tree is None and data and is_content_by_name and self._content_is_json:
            raise ValueError("no JSON")
        return tree

    def _kind(self, name: bytes, tree: Any, *, is_end: bool) -> str:
        """Return the kind of an event: that of the first table that matches, else "error" by its shape, else ""."""
        kind = ""
        for table_kind, matcher in self._kinds.items():
            if matcher.matches(name, tree):
                kind = table_kind
                break
        if kind in {"error", "phase", "citation"}:
            return kind
        if kind == "content" and not self._content_is_json:
            # Plain text may look like an error, and is none. An end mark has no text.
            if not is_end:
                return kind
            kind = ""
        if self._is_failure(name, tree, is_content=kind == "content"):
            return "error"
        return kind

    def _is_failure(self, name: bytes, tree: Any, *, is_content: bool) -> bool:
        """Return whether an event is an error by its shape, and cannot be content."""
        value = value_at(tree, self._text)
        has_text = is_content and isinstance(value, str) and value
        if has_text:
            return not self._content.conditions and calls_itself_error(tree)
        return name == b"error" or (isinstance(tree, dict) and looks_like_error(tree))

    def _error_of(self, tree: Any, data: bytes) -> Any:
        """Return an error for the decoder: an object, or text."""
        if tree is None:
            return _text(data)
        return self._errors.read(tree)

    def _content_of(self, tree: Any, data: bytes) -> Any:
        """Return the text of a content event, or whatever else stands there: the decoder reports it."""
        if self._content_is_json:
            return value_at(tree, self._text) or ""
        return _text(data)

    def _phase_of(self, tree: Any, data: bytes) -> str:
        """Return the name of a phase."""
        if not self._phase_name:
            return _text(data)
        name = value_at(tree, self._phase_name)
        if isinstance(name, str | int | float):
            return str(name)
        return "unnamed"


def _matchers(sse: SseSettings) -> dict[str, Matcher]:
    """Return the matchers by kind, in the order in which they are tried."""
    tables = {"error": sse.error, "phase": sse.phase, "citation": sse.citation}
    matchers = {kind: Matcher(table) for kind, table in tables.items() if table.is_set}
    return {**matchers, "content": content_matcher(sse.content)}


def _stop(decoder: StreamDecoder) -> None:
    """End the answer at its first end mark; many applications send two."""
    if decoder.stopped is None:
        decoder.stop()


def flat(prompt: Prompt) -> str:
    """Return the whole prompt as one text: system, then the conversation. A prompt of one text is that text."""
    texts = [part.text for part in prompt.system]
    for message in prompt.messages:
        texts += [part.text for part in message.parts]
    return "\n\n".join(texts)


def _tree(data: bytes) -> Any:
    """Return the data as JSON; None where it is none."""
    try:
        return tree_of(data)
    except ValueError:
        return None


def _text(data: bytes) -> str:
    return data.decode("utf-8", "replace")
