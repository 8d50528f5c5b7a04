"""OpenAI chat completions: the official SDK builds the request, this file reads the stream.

The role chunk is no content. `prompt_tokens` includes cached tokens, and tokens that vLLM wrote to its cache; input_tokens
does not. The end mark is [DONE]. An answer without it is complete if it has a finish reason and its body ended cleanly.

Thinking has no common name: `reasoning_effort` is sent to every target, and engines also get the variable `enable_thinking`
of their chat template. Only engines get a budget (`thinking_token_budget`, `thinking_budget`).

Cache marks are breakpoints behind content parts; tools have none. A request with its own marks switches off the mark that
the provider sets at the end. A text without a mark is sent as a plain string.
"""

from __future__ import annotations

import json
import re
from collections.abc import Hashable, Iterator, Mapping
from functools import lru_cache
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from tailgauge import call as needs
from tailgauge import protocol_violations as violations
from tailgauge import vendors
from tailgauge.call import ASSISTANT, SYSTEM, USER, Call, Message, Part, Prompt, Tool, unmarked
from tailgauge.protocols import protocol
from tailgauge.protocols.decoder import (
    KIND_CODE,
    StreamDecoder,
    stop_details_text,
    text_or_none,
    tree_of,
)
from tailgauge.protocols.errors import looks_like_error
from tailgauge.protocols.pointers import steps, value_at
from tailgauge.protocols.protocol import (
    TEXT_BLOCK,
    Adaptation,
    MarkRules,
    Opened,
    Provider,
    TargetSettings,
    WireProtocol,
)
from tailgauge.protocols.shapes import (
    ANYTHING,
    COUNT,
    NEVER,
    NOTHING,
    SAME,
    SAME_WITH_ROLE,
    Field,
    Shape,
    content,
    first_content,
    inside,
    nothing_or,
    one_inside,
    or_nothing,
    required,
    role,
)
from tailgauge.rows.schema import TEXT, THINKING, TOOL_JSON

if TYPE_CHECKING:
    import openai

_VERSION = re.compile(r"/v\d\w*(?:/|$)")  # in a path: /v1, /v1beta/openai, /api/v3
_MAX_TOKENS = "max_tokens"
_MAX_COMPLETION_TOKENS = "max_completion_tokens"
_OTHER_FIELD = {_MAX_TOKENS: _MAX_COMPLETION_TOKENS, _MAX_COMPLETION_TOKENS: _MAX_TOKENS}
_UNKNOWN_FIELD = re.compile(
    r"unsupported|not supported|unrecognized|unknown|unexpected|extra|not permitted", re.IGNORECASE
)
_OTHER_APIS = {  # ends of URLs, with what to use instead
    "/responses": "the Responses API has other requests and events: give the base URL of chat completions, without /responses",
    "/v1/completions": "completions without messages are another API: give the base URL, without /completions",
    "/messages": 'this is the address of Messages: set target.protocol = "anthropic"',
    "/embeddings": "embeddings are no chat completions: give the base URL, without /embeddings",
}
_REFUSED = {  # by the provider, though engines take it
    needs.EXACT_OUTPUT: "this provider ends each answer where the model does: leave `output` out",
    needs.THINKING_BUDGETS: "this provider takes no budget for it: use 'adaptive'",
}
_TEXT = KIND_CODE[TEXT]
_THINKING = KIND_CODE[THINKING]
_TOOL = KIND_CODE[TOOL_JSON]
_DONE = b"[DONE]"
_THOUGHTS = frozenset(
    {
        "reasoning_content",
        "reasoning",
        "reasoning_details",
        "reasoning_text",
        "thinking",
        "thinking_blocks",
    }
)
_OTHER_CONTENT = frozenset({"tool_calls", "function_call", "refusal", "audio"})
_BEHIND_GATEWAY = "provider_specific_fields"  # of LiteLLM, from the provider behind it
_REFUSAL = "refusal"
_ERROR_KEYS = frozenset({"error", "x_groq", "base_resp"})  # that may stand beside choices
_IS_THOUGHT = ("extra_content", "google", "thought")
_USAGE = vendors.TABLE["usage"]["openai"]
_USAGE_PLACES = tuple(map(steps, _USAGE["places"]))
_COUNT_PATHS = {
    name: tuple(map(steps, pointers)) for name, pointers in _USAGE.items() if name != "places"
}
# Counts that grow while an answer streams.
_GROWING = frozenset({"output_tokens", "thinking_tokens", "total_tokens"})


def _usage_fields() -> dict[str, Field]:
    """Return the fields of a usage in a plain event: its counts may grow, and everything else is as before."""
    known_fields = dict.fromkeys(vendors.TABLE["usage"]["known"]["openai"], ANYTHING)
    fields = dict(known_fields)
    details: dict[str, dict[str, Field]] = {}  # fields of the objects within a usage
    for name, paths in _COUNT_PATHS.items():
        rule = COUNT if name in _GROWING else SAME
        for path in paths:
            key = path[-1]
            if len(path) == 1:
                fields[key] = rule
            elif len(path) == 2:
                details.setdefault(path[0], dict(known_fields))[key] = rule
    for place, detail_fields in details.items():
        fields[place] = or_nothing(inside(detail_fields, refuses_others=True))
    return fields


def _chunk_shape(delta: Mapping[str, Field]) -> Shape:
    """Return the shape of a chunk with this delta."""
    choice = {
        "delta": or_nothing(inside(delta)),
        "finish_reason": nothing_or("null"),
        "usage": or_nothing(inside({}, refuses_others=True)),
    }
    usage = or_nothing(inside(_usage_fields(), refuses_others=True))
    fields = {"id": SAME_WITH_ROLE, "choices": required(one_inside(choice)), "usage": usage}
    fields["service_tier"] = or_nothing(SAME)
    return Shape({**fields, **dict.fromkeys(_ERROR_KEYS, NEVER)})


_TEXT_DELTA = {
    "role": role(ASSISTANT),
    "content": or_nothing(content(_TEXT)),
    "extra_content": NEVER,
    **dict.fromkeys(_THOUGHTS, or_nothing(first_content(_THINKING))),
    **dict.fromkeys((*_OTHER_CONTENT, _BEHIND_GATEWAY), NOTHING),
}
_TOOL_PIECE = {
    "index": required(SAME),
    "id": NOTHING,
    "custom": NOTHING,
    "function": required(inside({"name": NOTHING, "arguments": or_nothing(content(_TOOL))})),
}
_TOOL_DELTA = {
    **_TEXT_DELTA,
    **dict.fromkeys(("content", *_THOUGHTS), NOTHING),
    "tool_calls": required(one_inside(_TOOL_PIECE)),
}


class OpenAI(WireProtocol):
    """Chat completions."""

    name = "openai"
    summary = "chat completions"
    sdk = "openai"
    call_path = "/chat/completions"
    provider = Provider(
        "api.openai.com",
        "OPENAI_API_KEY",
        ("OPENAI_ORG_ID", "OPENAI_PROJECT_ID", "OPENAI_ADMIN_KEY"),
    )
    shapes: ClassVar[tuple[Shape, ...]] = (_chunk_shape(_TEXT_DELTA), _chunk_shape(_TOOL_DELTA))
    content: ClassVar[Mapping[str, frozenset[str]]] = {
        USER: TEXT_BLOCK | {"image_url", "input_audio", "file", "video_url", "audio_url"},
        ASSISTANT: TEXT_BLOCK | {"refusal"},
        **dict.fromkeys((SYSTEM, "developer", "tool", "function"), TEXT_BLOCK),
    }
    message_keys = frozenset(
        {
            "name",
            "tool_calls",
            "tool_call_id",
            "function_call",
            "refusal",
            "audio",
            "reasoning_content",
            "reasoning",
        }
    )
    tool_key = "function"
    marks = MarkRules(
        places=frozenset({"system", "few_shot", "last", "automatic"}),
        lives=tuple(vendors.TABLE["cache"]["openai"]["lives_s"]),
        automatic_lives=("30m",),
        at_engines=False,
        has_key=True,
    )
    limit_fields = (_MAX_TOKENS, _MAX_COMPLETION_TOKENS, "none")
    longest_wait_s = 120.0
    ends_at_mark = True
    offers = frozenset(
        {
            needs.EXACT_OUTPUT,
            needs.CACHE_MARKS,
            needs.SCHEMAS,
            needs.EXTENDED_THINKING,
            needs.THINKING_BUDGETS,
            needs.TOOLS,
            needs.WHOLE_ANSWERS,
        }
    )
    set_elsewhere: ClassVar[Mapping[str, str]] = {
        **protocol.IN_TABLE,
        **dict.fromkeys(
            ("max_tokens", "max_completion_tokens"), "use output_tokens of the traffic table"
        ),
        "stream_options.include_usage": "tokens are counted by it: leave it out",
        "n": "one answer is read per call: use a higher rate",
    }

    def __init__(self, target: TargetSettings, url: str) -> None:
        super().__init__(target, url)
        # The provider's newer models refuse max_tokens; engines often know nothing else.
        default_field = _MAX_COMPLETION_TOKENS if self.at_provider else _MAX_TOKENS
        self._limit_is_given = target.max_tokens_field is not None
        self._limit_field = target.max_tokens_field or default_field
        self.obeys_max_tokens = self._limit_field in _OTHER_FIELD
        self._takes_marks = target.engine is None

    @classmethod
    def refuses_url(cls, url: str) -> str:
        """Refuse addresses of other APIs, which users copy from a provider's page."""
        path = urlsplit(url).path
        for end, instead in _OTHER_APIS.items():
            if path.endswith(end):
                return instead
        return ""

    @classmethod
    def refuses(cls, url: str, need: str) -> str:
        """Refuse a thinking budget and an exact length at the provider; engines take them."""
        if cls.provider.host not in url:
            return ""
        return _REFUSED.get(need, "")

    def adaptation(self, refusal: str) -> Adaptation | None:
        """Return the other name of the limit, where the text refuses the one that was sent, or names the other."""
        other_field = _OTHER_FIELD.get(self._limit_field)
        if self._limit_is_given or other_field is None:
            return None
        names_other = self._limit_field == _MAX_TOKENS and other_field in refusal
        names_limit = re.search(rf"\b{self._limit_field}\b", refusal)
        if names_other or (names_limit and _UNKNOWN_FIELD.search(refusal)):
            return Adaptation(max_tokens_field=other_field)
        return None

    def adapt(self, adaptation: Adaptation) -> None:
        """Send the limit under the name that the target knows, and no marks to an engine that caches without them."""
        if adaptation.max_tokens_field is not None:
            self._limit_field = adaptation.max_tokens_field
        if adaptation.automatic_cache is not None:
            self._takes_marks = False

    def client(self, base_url: str, key: str, http_client: Any) -> openai.OpenAI:
        """Return the official client; the harness retries itself. The SDK wants the version in the base URL."""
        import openai

        base, query = protocol.without_call(base_url, self.call_path)
        if "api-version" not in query and not _VERSION.search(urlsplit(base).path):
            base += "/v1"
        options = {"base_url": base, "default_query": query, **protocol.SDK_OPTIONS}
        return openai.OpenAI(api_key=key, http_client=http_client, **options)

    def send(self, sdk: openai.OpenAI, call: Call, model: str, call_id: str) -> Opened:
        """Return one chat completion, streamed with usage, or whole; entering it sends the request."""
        # The overloads of `create` cannot name a key by value.
        create: Any = sdk.chat.completions.with_streaming_response.create
        extra_body = None
        if not self.at_provider:
            extra_body = _engine_thinking(call) or None
        opened: Opened = create(
            **self._standard(call, model),
            extra_body=extra_body,
            extra_headers={"x-client-request-id": call_id},
        )
        return opened

    def body(self, call: Call, model: str) -> dict[str, Any]:
        """Return the body of a chat completion's request."""
        standard = self._standard(call, model)
        if self.at_provider:
            return standard
        return standard | _engine_thinking(call)

    def _standard(self, call: Call, model: str) -> dict[str, Any]:
        """Return the fields for which the SDK has parameters."""
        # A hedge or a fallback may come from a target with marks.
        prompt = call.prompt if self._takes_marks else unmarked(call.prompt)
        body: dict[str, Any] = {"model": model, "messages": _messages(prompt)}
        if self._limit_field in _OTHER_FIELD:
            body[self._limit_field] = call.max_tokens
        return {**body, **_options(call), **_cache_options(prompt)}

    def template_key(self, call: Call, body: Mapping[str, Any]) -> Hashable:  # noqa: ARG002 - the interface
        """Return whether there are content blocks, which the SDK writes in another way than texts."""
        return protocol.has_blocks(body)

    @staticmethod
    def on_event(decoder: StreamDecoder, name: bytes, data: bytes) -> None:
        """Decode one event of the chat stream. Raises for what is not of the protocol; the decoder notes that."""
        if _decode_no_chunk(decoder, name, data):
            return
        chunk = tree_of(data)
        if _has_error(chunk):
            decoder.error_event(chunk)
            return
        if decoder.model is None:
            _read_facts(decoder, chunk)
        choices = chunk.get("choices")
        for choice in choices or ():
            _on_choice(decoder, choice, chunk.get("id"))
        if b"usage" in data:
            _usages(decoder, chunk)
        elif choices is None:
            decoder.tolerate(violations.UNKNOWN_EVENT)
        # The target speaks the protocol of another provider.
        if choices is None and chunk.get("type") == "message_start":
            decoder.violate(
                violations.MALFORMED_EVENT, f"{violations.OF_ANOTHER_PROTOCOL}anthropic"
            )

    @staticmethod
    def on_whole(decoder: StreamDecoder, body: bytes) -> None:
        """Decode an answer that came without a stream: its facts, its usage, and all its content as one chunk.

        Raises ValueError and its like for what is no completion.
        """
        answer = tree_of(body)
        if _has_error(answer):
            decoder.error_event(answer)
            return
        _read_facts(decoder, answer)
        choice = answer["choices"][0]
        decoder.stop_reason = text_or_none(choice.get("finish_reason"))
        if choice.get("error"):
            decoder.error_event({"error": choice["error"]})
            return
        _usages(decoder, answer)
        message = choice["message"]
        if message.get("refusal"):
            decoder.is_refusal = True
        _read_provider_fields(decoder, message.get(_BEHIND_GATEWAY))
        functions = [_function(call) for call in message.get("tool_calls") or ()]
        if message.get("function_call"):
            functions.append(message["function_call"])
        # One tool call stands for all: they are complete at once.
        if functions:
            decoder.tool(0, None)
            decoder.tools_done()
        inputs = [_arguments(decoder, function) for function in functions]
        texts = [text for kind, text in _parts(decoder, message.get("content")) if kind == _TEXT]
        decoder.whole_content("".join(texts), "".join(inputs))


def _messages(prompt: Prompt) -> list[dict[str, Any]]:
    """Return the conversation, with breakpoints where it is marked."""
    messages = prompt.messages
    if prompt.system:
        messages = (Message(SYSTEM, prompt.system), *messages)
    bodies = []
    for message in messages:
        body = {"role": message.role, "content": _content(message.parts)}
        if message.more:
            body |= json.loads(message.more)
        bodies.append(body)
    return bodies


def _content(parts: tuple[Part, ...]) -> Any:
    """Return the parts of a message as one text, or as blocks where one has a mark or is the user's own.

    Chat templates of engines join several texts in different ways, or take only the first: so they get one.
    """
    if any(part.block or part.ttl is not None for part in parts):
        return [_marked(protocol.block_of(part), part.ttl) for part in parts]
    if not parts:
        return None
    return "\n\n".join(part.text for part in parts)


def _marked(block: dict[str, Any], ttl: str | None) -> dict[str, Any]:
    """Return the block with a cache mark of this life, None for no mark."""
    if ttl is None:
        return block
    mark = {"mode": "explicit"}
    # The default life is left out, and so is a life that only another protocol has.
    if ttl in OpenAI.marks.lives[1:]:
        mark["ttl"] = ttl
    return {**block, "prompt_cache_breakpoint": mark}


def _cache_options(prompt: Prompt) -> dict[str, Any]:
    """Return how the request is cached: by its own marks alone, or also by the one that the provider sets at the end."""
    options: dict[str, Any] = {}
    if prompt.automatic is not None:
        options["prompt_cache_options"] = {"mode": "implicit"}
    elif _has_marks(prompt):
        options["prompt_cache_options"] = {"mode": "explicit"}
    if prompt.cache_key is not None:
        options["prompt_cache_key"] = prompt.cache_key
    return options


def _has_marks(prompt: Prompt) -> bool:
    for parts in (prompt.system, *(message.parts for message in prompt.messages)):
        if any(part.ttl is not None for part in parts):
            return True
    return False


def _options(call: Call) -> dict[str, Any]:
    """Return the fields beside the conversation; those that the call does not need are left out."""
    options: dict[str, Any] = {"stream": call.stream}
    if call.stream:
        options["stream_options"] = {"include_usage": True}
    if call.prompt.tools:
        options["tools"] = _tools(call.prompt.tools)
        if call.use_tool:
            options["tool_choice"] = "required"
    if call.thinking != "off":
        options["reasoning_effort"] = "medium"
    if call.schema is not None:
        schema = {"name": "answer", "schema": json.loads(call.schema), "strict": True}
        options["response_format"] = {"type": "json_schema", "json_schema": schema}
    return options


def _engine_thinking(call: Call) -> dict[str, Any]:
    """Return how engines name thinking: a variable of the chat template, and for a budget vLLM's field beside it."""
    match call.thinking:
        case "off":
            return {}
        case "enabled":
            budget = call.thinking_tokens
            return {
                "chat_template_kwargs": {"enable_thinking": True, "thinking_budget": budget},
                "thinking_token_budget": budget,
            }
        case _:
            return {"chat_template_kwargs": {"enable_thinking": True}}


@lru_cache(maxsize=256)
def _tools(tools: tuple[Tool, ...]) -> list[dict[str, Any]]:
    return [_tool(tool) for tool in tools]


def _tool(tool: Tool) -> dict[str, Any]:
    """Return a tool: the user's own under its name, or one with a schema."""
    if tool.given:
        user_tool = json.loads(tool.given)
        return {**user_tool, "function": {**user_tool["function"], "name": tool.name}}
    function = {
        "name": tool.name,
        "description": tool.description,
        "parameters": json.loads(tool.schema),
    }
    return {"type": "function", "function": function}


def _decode_no_chunk(decoder: StreamDecoder, name: bytes, data: bytes) -> bool:
    """Decode an event that is no chunk: an end mark, a named error, no data, or data behind the end; False for a chunk."""
    if decoder.stopped is not None:
        decoder.tolerate(violations.DATA_AFTER_DONE)
        return True
    if not data:
        decoder.tolerate(violations.EMPTY_DATA)
        return True
    decoder.seen()
    if data.startswith(_DONE):
        if data != _DONE:
            decoder.tolerate(violations.DONE_BY_PREFIX)
        decoder.stop()
        return True
    if name == b"error":
        decoder.named_error(data)
        return True
    return False


def _has_error(chunk: Any) -> bool:
    """Return whether a chunk is an error, or has one beside its choices."""
    is_usual = isinstance(chunk, dict) and chunk.get("choices") and _ERROR_KEYS.isdisjoint(chunk)
    return not is_usual and looks_like_error(chunk, any_code=True)


def _read_facts(decoder: StreamDecoder, chunk: dict[str, Any]) -> None:
    """Read the facts that each chunk repeats; Azure's first one names no model."""
    decoder.message_id = decoder.message_id or text_or_none(chunk.get("id"))
    decoder.model = text_or_none(chunk.get("model")) or None
    tier = text_or_none(chunk.get("service_tier"))
    decoder.served.service_tier = tier or decoder.served.service_tier


def _on_choice(decoder: StreamDecoder, choice: dict[str, Any], message_id: Any) -> None:
    """Decode a choice of a chunk: its content, and why the answer has ended. `message_id`: the id of the chunk.

    A second completion in the same stream is a violation. An answer is finished with its finish reason: the
    end mark may be missing.
    """
    delta = choice.get("delta")
    if delta:
        chunks_before = decoder.chunks
        # Targets that name the role in each chunk are no sign of a second completion.
        if decoder.names_role_once and delta.get("role") and message_id != decoder.message_id:
            decoder.violate(
                violations.SECOND_MESSAGE, "another completion begins before the end of the first"
            )
        _on_delta(decoder, delta)
        has_content = decoder.chunks > chunks_before
        if has_content and "role" not in delta:
            decoder.names_role_once = True
        if has_content and decoder.finished:
            _note_content_after_finish(decoder, message_id)
    reason = choice.get("finish_reason")
    if reason and reason != "null":  # DashScope has the text on every chunk
        if choice.get("error"):  # OpenRouter
            decoder.error_event({"error": choice["error"]})
        decoder.tools_done()
        # The gateway's own reason for a refusal says less.
        if decoder.stop_reason != _REFUSAL:
            decoder.stop_reason = text_or_none(reason)
        decoder.finished = True


def _note_content_after_finish(decoder: StreamDecoder, message_id: Any) -> None:
    if message_id != decoder.message_id:
        decoder.violate(
            violations.SECOND_MESSAGE, "content of another completion after the finish reason"
        )
    else:
        decoder.tolerate(violations.CONTENT_AFTER_FINISH)


def _on_delta(decoder: StreamDecoder, delta: dict[str, Any]) -> None:
    """Decode the content of a delta, in the order of its keys. Keys without a meaning here are ignored."""
    has_thought = False  # gateways send the same thought under two names
    for name, value in delta.items():
        if not value:
            continue
        if name == "content":
            # Plain text, with no mark that it is a thought.
            if isinstance(value, str) and "extra_content" not in delta:
                decoder.text_delta(value)
            else:
                _unusual_content(decoder, value, is_thought=value_at(delta, _IS_THOUGHT) is True)
        elif name in _THOUGHTS:
            if not has_thought:
                _thought(decoder, value)
            has_thought = True
        elif name in _OTHER_CONTENT:
            _other_content(decoder, name, value)
        elif name == _BEHIND_GATEWAY:
            _read_provider_fields(decoder, value)


def _unusual_content(decoder: StreamDecoder, content: Any, *, is_thought: bool) -> None:
    """Decode content that is a list, or is marked as a thought."""
    if not isinstance(content, str):
        for kind, text in _parts(decoder, content):
            decoder.content(kind, text)
    elif is_thought:
        decoder.content(_THINKING, content)
    else:
        decoder.text_delta(content)


def _other_content(decoder: StreamDecoder, name: str, value: Any) -> None:
    match name:
        case "tool_calls":
            for call in value:
                _tool_call(decoder, call)
        case "function_call":
            decoder.tool(name)
            decoder.content(_TOOL, _arguments(decoder, value))
        case "refusal":
            decoder.is_refusal = True
            decoder.content(_TEXT, value, is_answer=False)
        case "audio":
            decoder.content(
                _TEXT, value.get("transcript") or value.get("data") or "", is_answer=False
            )


def _read_provider_fields(decoder: StreamDecoder, fields: Any) -> None:
    """Read whether the model behind a gateway refuses; the gateway's own reason for that is content_filter."""
    if not isinstance(fields, dict) or fields.get("stop_reason") != _REFUSAL:
        return
    decoder.stop_reason = _REFUSAL
    details = fields.get("stop_details")
    if isinstance(details, dict):
        decoder.served.stop_details = stop_details_text(details)


def _thought(decoder: StreamDecoder, value: Any) -> None:
    """Decode a thought: one text, or a list of details, some of which are encrypted."""
    if not isinstance(value, list):
        decoder.content(_THINKING, value)
        return
    for detail in value:
        thought = detail.get("text") or detail.get("summary") or detail.get("thinking")
        if thought:
            decoder.content(_THINKING, thought)
        else:
            decoder.thinks()


def _parts(decoder: StreamDecoder, content: Any) -> Iterator[tuple[int, str]]:
    """Yield kind and text of each part of a content. Mistral's reasoning models send a list of parts."""
    if isinstance(content, str):
        yield _TEXT, content
        return
    if content is None:
        return
    if not isinstance(content, list):
        raise TypeError(f"content is no text but {type(content).__name__}")
    decoder.tolerate(violations.CONTENT_LIST)
    for part in content:
        if part.get("type") == "thinking":
            thinking = part.get("thinking")
            yield _THINKING, "".join(text for _, text in _parts(decoder, thinking))
        elif isinstance(part.get("text"), str):
            yield _TEXT, part["text"]


def _tool_call(decoder: StreamDecoder, call: dict[str, Any]) -> None:
    """Decode a piece of a tool call. Gemini leaves the index out, other gateways give 0 to each call."""
    index = call.get("index")
    function = _function(call)
    call_id = call.get("id")
    if index is None:
        decoder.tolerate(violations.TOOL_WITHOUT_INDEX)
    key = decoder.tools.key(index, call_id, has_name=bool(function.get("name")))
    if decoder.tools.shares_index and index is not None:
        decoder.tolerate(violations.TOOLS_OF_EQUAL_INDEX)
    arguments = _arguments(decoder, function)
    decoder.tool(key, call_id, has_input=bool(arguments))
    decoder.content(_TOOL, arguments)
    if index is None and _is_whole(arguments):
        decoder.tool_done(key)


def _function(call: dict[str, Any]) -> dict[str, Any]:
    """Return the function that a tool call names; a custom tool has an input of any text."""
    custom = call.get("custom")
    if custom:
        return {"name": custom.get("name"), "arguments": custom.get("input")}
    return call.get("function") or {}


def _arguments(decoder: StreamDecoder, function: dict[str, Any]) -> str:
    arguments = function.get("arguments")
    if isinstance(arguments, dict):
        decoder.tolerate(violations.TOOL_INPUT_OBJECT)
        return json.dumps(arguments)
    return arguments or ""


def _is_whole(arguments: str) -> bool:
    """Return whether the input of a tool is complete in one piece."""
    if not arguments.rstrip().endswith("}"):
        return False
    try:
        return isinstance(tree_of(arguments.encode("utf-8", "replace")), dict)
    except ValueError:
        return False


def _usages(decoder: StreamDecoder, chunk: dict[str, Any]) -> None:
    """Read the usage of a chunk or an answer, in all places where it may stand."""
    for place in _USAGE_PLACES:
        usage = value_at(chunk, place)
        if usage is not None:
            decoder.read_usage(usage)
    tier = text_or_none(chunk.get("service_tier"))
    if tier:
        decoder.served.service_tier = tier
