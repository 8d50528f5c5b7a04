"""What the official SDKs make of the bytes of a stream: their own message, or None where they raise."""

from __future__ import annotations

import json
import warnings
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import anthropic
import httpcore2
import httpx2
import openai
from openai.lib.streaming.chat import ChatCompletionStreamState

MESSAGES: Any = [{"role": "user", "content": "some words"}]


@dataclass
class Answer:
    """An answer as an SDK gives it."""

    text: str = ""
    tool_inputs: list[Any] = field(default_factory=list)
    stop_reason: str | None = None
    usage: dict[str, Any] = field(default_factory=dict)


class Recorded(httpx2.HTTPTransport):
    """Answers each request with the same reads, through the client's own HTTP/1.1."""

    def __init__(self) -> None:
        super().__init__(verify=False, trust_env=False)
        self.reads: tuple[bytes, ...] = ()

    def handle_request(self, request: httpx2.Request) -> httpx2.Response:
        """Answer over a connection of its own."""
        self._pool = httpcore2.ConnectionPool(
            network_backend=httpcore2.MockBackend(list(self.reads))
        )
        return super().handle_request(request)


class Readers:
    """Both SDKs, over recorded connections."""

    def __init__(self) -> None:
        self._recorded = Recorded()
        client = httpx2.Client(transport=self._recorded, trust_env=False)
        options: Any = {
            "api_key": "x",
            "base_url": "http://a.example",
            "http_client": client,
            "max_retries": 0,
        }
        self._anthropic = anthropic.Anthropic(**options)
        self._openai = openai.OpenAI(**options)
        self.error = ""  # of the last answer that was none

    def read(self, protocol: str, reads: tuple[bytes, ...]) -> Answer | None:
        """Return the answer, or None where the SDK raises."""
        self._recorded.reads = reads
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", "Pydantic serializer warnings", UserWarning)
                return self._message() if protocol == "anthropic" else self._completion()
        except Exception as error:  # noqa: BLE001 - the SDK's own, whatever they are
            self.error = f"{type(error).__name__}: {error}"[:300]
            return None

    def _message(self) -> Answer:
        with self._anthropic.messages.stream(model="m", max_tokens=10, messages=MESSAGES) as stream:
            message = stream.get_final_message()
        answer = Answer(stop_reason=message.stop_reason)
        for block in message.content:
            if block.type == "text":
                answer.text += block.text
            elif block.type == "tool_use":
                answer.tool_inputs.append(block.input)
        usage = message.usage
        for name in (
            "input_tokens",
            "cache_read_input_tokens",
            "cache_creation_input_tokens",
            "output_tokens",
        ):
            answer.usage[name] = getattr(usage, name)
        return answer

    def _completion(self) -> Answer:
        chunks = self._openai.chat.completions.create(model="m", messages=MESSAGES, stream=True)
        state = ChatCompletionStreamState()
        usage = None
        for chunk in chunks:
            list(state.handle_chunk(chunk))
            usage = chunk.usage or usage
        choices = state.current_completion_snapshot.choices
        answer = Answer(usage=_counts(usage))
        if choices:
            message = choices[0].message
            answer.stop_reason = choices[0].finish_reason or None
            answer.text = message.content or ""
            answer.tool_inputs = list(_inputs(message))
        return answer


def _inputs(message: Any) -> Iterable[Any]:
    for call in message.tool_calls or ():
        arguments = call.function.arguments
        yield _value(arguments) if isinstance(arguments, str) else arguments
    if message.function_call:
        yield _value(message.function_call.arguments)


def _value(text: str) -> Any:
    """Return the JSON value of a text, or the text where it is none."""
    try:
        return json.loads(text)
    except ValueError:
        return text


def values(text: str) -> Iterable[Any]:
    """Yield the JSON values that stand one behind the other."""
    decoder = json.JSONDecoder()
    position = 0
    while position < len(text):
        value, position = decoder.raw_decode(text, position)
        yield value


def _counts(usage: Any) -> dict[str, Any]:
    """Return the counts of OpenAI's own fields, by our columns."""
    if usage is None:
        return {}
    details = usage.prompt_tokens_details
    read = None if details is None else details.cached_tokens
    written = None if details is None else details.cache_write_tokens
    prompt = usage.prompt_tokens
    if isinstance(prompt, int):
        prompt -= (read or 0) + (written or 0)
    return {
        "input_tokens": prompt,
        "cache_read_input_tokens": read,
        "cache_creation_input_tokens": written,
        "output_tokens": usage.completion_tokens,
    }
