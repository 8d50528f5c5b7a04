"""One HTTP call as the traffic wants it: prompt, model, target, and what to record of the answer.

Plain values that nobody changes; `frozen` would make each cost four times as much. Patterns make calls, protocols send them,
a dry run counts them; none of the three knows the others.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import Any

# Names of a run's targets.
MAIN = "main"
SECOND = "second"
MESSAGE = "message"
JOB_SUBMIT = "job_submit"
JOB_POLL = "job_poll"
JOB_FETCH = "job_fetch"
JOB_CANCEL = "job_cancel"
USER = "user"
ASSISTANT = "assistant"
SYSTEM = "system"

# What a call may need of its protocol.
BATCHES = "message batches"
JOBS = "jobs that are polled"
RESUMPTION = "streams that can be resumed"
CACHE_MARKS = "cache marks"
SCHEMAS = "answers by a schema"
EXTENDED_THINKING = "extended thinking"
THINKING_BUDGETS = "thinking budgets"
TOOLS = "tools"
WHOLE_ANSWERS = "answers without a stream"
EXACT_OUTPUT = "answers of an exact length"


@dataclass(slots=True, unsafe_hash=True)
class Part:
    """A block of text; `ttl` is the life of a cache mark after it, or None without a mark.

    `block`: JSON text of a content block that the user gave, sent as it is; `text` is then what there is of text in it.
    """

    text: str
    ttl: str | None = None
    block: str | None = None


@dataclass(slots=True, unsafe_hash=True)
class Message:
    """One turn of the conversation; `more`: other keys that the user gave, as JSON text."""

    role: str
    parts: tuple[Part, ...]
    more: str | None = None


@dataclass(frozen=True, slots=True)
class Tool:
    """A tool definition; `schema` is JSON Schema as JSON text.

    `given`: JSON text of the user's own definition, sent as it is but for its name.
    """

    name: str
    description: str
    schema: str
    ttl: str | None = None
    given: str | None = None


@dataclass(frozen=True, slots=True)
class GivenRequest:
    """A request of the user's own: the JSON text of its body and its headers, which are sent as they are.

    `has_limit`: the body limits the tokens of the answer.
    """

    body: str = field(repr=False)
    headers: tuple[tuple[str, str], ...] = field(default=(), repr=False)
    model: str | None = None
    stream: bool = False
    has_limit: bool = False


@dataclass(slots=True, unsafe_hash=True)
class Prompt:
    """A prompt in the order in which a prefix cache reads it: tools, system, messages.

    `prefix` is the number of the shared prefix with which it begins, `shared` the messages that belong to it. With `unique`
    no other request can have the same first bytes. `tokens`: at least so many, where the user states it. `automatic` is the
    life of a cache mark that the target is to put at the end, `cache_key` names the prefix to the target. `given` is sent
    instead of the rest.
    """

    messages: tuple[Message, ...]
    system: tuple[Part, ...] = ()
    tools: tuple[Tool, ...] = ()
    prefix: int | None = None
    shared: int = 0
    unique: bool = False
    tokens: int = 0
    automatic: str | None = None
    cache_key: str | None = None
    given: GivenRequest | None = None

    @property
    def parts(self) -> Iterator[Part]:
        """The parts of the system prompt and of all messages, in their order."""
        yield from self.system
        for message in self.messages:
            yield from message.parts

    @property
    def text_bytes(self) -> int:
        """About how many bytes of text it has, without tools and the user's own blocks."""
        return sum(len(part.text) for part in self.parts)

    @classmethod
    def of(cls, text: str) -> Prompt:
        """Return one user message."""
        return cls((Message(USER, (Part(text),)),))


def unmarked(prompt: Prompt) -> Prompt:
    """Return the prompt without marks in its messages, and without a name, for a target that takes none."""
    is_bare = prompt.automatic is None and prompt.cache_key is None
    if is_bare and all(part.ttl is None for part in prompt.parts):
        return prompt
    messages = tuple(
        replace(message, parts=_unmarked(message.parts)) for message in prompt.messages
    )
    system = _unmarked(prompt.system)
    return replace(prompt, messages=messages, system=system, automatic=None, cache_key=None)


def _unmarked(parts: tuple[Part, ...]) -> tuple[Part, ...]:
    return tuple(part if part.ttl is None else replace(part, ttl=None) for part in parts)


@dataclass(slots=True)
class Call:
    """One HTTP call."""

    prompt: Prompt
    max_tokens: int
    model: str | None = None  # else the target's
    target: str = MAIN
    stream: bool = True
    ends_naturally: bool = False  # its answer should end by itself, before max_tokens
    thinking: str = "off"  # off, adaptive, enabled
    thinking_tokens: int = 0  # budget, where enabled
    use_tool: bool = False  # the model must use one of the prompt's tools
    schema: str | None = None  # JSON Schema that the answer must follow, as JSON text
    watch_field: bool = False  # record the time of the first usable field of a JSON answer
    watch_chunks: int = 0  # post `Chunks` when so many content chunks have arrived; 0: never
    keep_text: bool = False  # `Ended.text` carries the answer
    bytes_per_s: float | None = None  # a slow reader
    kind: str = MESSAGE
    # The answer with which the target compares the prompt, to say why its cache missed; empty: the first; None: not asked.
    previous_message_id: str | None = None
    batch: tuple[Prompt, ...] = ()  # of a job_submit with several prompts
    job: str | None = None  # of the calls after a job_submit: name or URL of the job
    # A `protocols.event_ids.EventIds`: note those of the events, ask for what follows the last.
    event_ids: Any = None
