"""Makes the prompts of one traffic table: ahead of need, never on the hot path.

    prompt      salt [tools] [system] [examples] [earlier turns] question
    question    what the table's source asks, see `source`
    salt        of the run, so that no cache knows the prompts from another run; with `cold`, of each request and leg

A prompt depends on the run, its seed, its request's id and, in a session, on the turns before; so any worker makes the same
one. Tools, system prompt and examples are the prefix, which requests share, with the cache marks behind them. A prefix
depends on the run's seed, the traffic table's name and the prefix's number only. It is made once; what a request changes
in it is a copy with that one block replaced.
"""

from __future__ import annotations

import json
from bisect import bisect_right
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from hashlib import sha256
from itertools import accumulate
from random import Random

from tailgauge.call import ASSISTANT, USER, Message, Part, Prompt, Tool
from tailgauge.patterns.settings import ALL_MARKS, AUTOMATIC, Cache, Marks
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.plugins.plugin import blamed
from tailgauge.prompts.source import SOURCES, PromptSource, cache_size, source_of
from tailgauge.prompts.words import WORDS, Vocabulary, salt
from tailgauge.schedule.schedule import Planned

_WARM_UP = "Ready?"
_KEY_LENGTH = 32  # of the name of a prefix; OpenAI takes 64 characters


class Maker:
    """Prompts of one traffic table."""

    def __init__(
        self,
        seed: int,
        traffic: Traffic,
        name: str,
        words_per_token: float = 1.0,
        overhead_tokens: int = 0,
        *,
        marks: Marks = ALL_MARKS,
        run: str = "",
        words: Sequence[str] = (),
    ) -> None:
        """Prepare to make the prompts of the traffic table `name`. Nothing is made yet.

        `words_per_token` turns sizes into words; `overhead_tokens` is what the target counts for an empty question. `words`:
        those of one token each, where the target tells. `marks`: those that the target takes; others are not set. `run`: the
        salt of the run, a valid tool name; empty where prompts repeat from run to run.
        """
        self._seed = seed
        self._traffic = traffic
        self._name = name
        self._words = Vocabulary(words_per_token, words or WORDS)
        self._overhead = overhead_tokens
        self._marks = marks
        self._run_salt = run
        # A generated prompt must not begin with one of `words`, which may be another number of tokens there: so it gets a fixed
        # beginning.
        if not run and words and traffic.prompts.is_generated:
            self._run_salt = WORDS[0]
        self._sizes_of_legs = pattern_of(traffic).prompt_sizes  # makes them out of the planned size
        self._cache = cache = traffic.cache
        self._marked_places: frozenset[str] = frozenset()
        self._ttl = ""
        self._popularity: list[float] = []
        shared_words = 1
        if cache is not None:
            self._marked_places = marks.places.intersection(cache.breakpoints)
            self._ttl = marks.ttl(cache)
            # Cumulated, to draw the number of a prefix.
            weights = (k**-cache.zipf for k in range(1, cache.prefixes + 1))
            self._popularity = list(accumulate(weights))
            shared_words = self._words(cache.prefix_tokens)
        self._automatic_ttl = self._ttl if AUTOMATIC in self._marked_places else None
        # No other request has the same first bytes.
        self._begins_uniquely = cache is not None and (cache.cold or cache.volatile == "front")
        # Prefixes are kept once they are made, fewer of long ones.
        self._prefix = lru_cache(cache_size(shared_words))(self._make_prefix)
        self._sources: dict[str, PromptSource] = {}

    def make(
        self, planned: Planned, turn: int = 0, history: Sequence[tuple[str, str]] = ()
    ) -> tuple[Prompt, ...]:
        """Return the prompts of turn `turn` of what `planned` begins (whose `request_id` is that of turn 0), one a leg.

        `history` holds the questions and answers of the turns before; it is used where the session grows, and an
        exchange without an answer is left out.
        """
        request_id = planned.request_id + turn
        session = planned.turns != 0  # the users of a closed loop have none: each turn is a request
        number = self._number(planned.request_id if session else request_id)
        earlier: list[Message] = []
        if session and self._traffic.session.grow:
            for question, answer in filter(all, history):
                earlier.append(Message(USER, (Part(question),)))
                earlier.append(Message(ASSISTANT, (Part(answer),)))
        make_leg = partial(self._leg, planned, request_id, number=number, earlier=earlier)
        sizes = self._sizes_of_legs(planned.prompt_tokens)
        return tuple(make_leg(leg, size) for leg, size in enumerate(sizes))

    def pre_warm(self) -> Iterator[Prompt]:
        """Yield one prompt for each prefix that writes it and has no question; most popular first."""
        for number in range(len(self._popularity)):
            shared = self._prefix(number)
            messages = (*shared.messages, Message(USER, (Part(_WARM_UP),)))
            yield Prompt(
                messages,
                shared.system,
                shared.tools,
                number,
                len(shared.messages),
                automatic=self._automatic_ttl,
                cache_key=self._cache_key(number),
            )

    def _leg(
        self,
        planned: Planned,
        request_id: int,
        leg: int,
        tokens: int,
        *,
        number: int | None,
        earlier: Sequence[Message],
    ) -> Prompt:
        """Return the prompt of one leg: the prefix `number`, the `earlier` turns, the question of about `tokens` tokens.

        `number` is None where the table shares no prefix: then prefix 0 has the offered tools only. The
        prompt begins with words of this request alone where the scenario wants that, and otherwise with the
        salt of the run, so that no cache knows it from an earlier run.
        """
        cache = self._cache
        use = f"{request_id}/{leg}" if leg else str(request_id)
        content = self._content(planned, use, tokens)
        # The user's own body is sent as it is.
        if content.given is not None:
            return content
        *preceding, question = content.messages
        if cache is not None and "last" in self._marked_places:
            question = marked(question, self._ttl)
        shared = self._prefix(number or 0)
        messages = (*earlier, *preceding, question)
        # The scenario imitates a mistake: a text that changes with each request stands inside the cached part.
        if cache is not None and cache.volatile == "marked":
            shared = shared.with_text_at_mark(
                f"This is request {request_id}.", self._last_marked(cache)
            )
        if content.system or content.tools:
            # A row of a prompt file has its own system prompt or tools, which follow those of the
            # prefix.
            shared = self._with_row_prefix(shared, Prefix(content.tools, content.system))
        # A request shares nothing behind words of its own: by intention (cold), or by an imitated mistake (volatile = "front").
        if cache is not None and self._begins_uniquely:
            words = f"{self._run_salt}{request_id}"
            if cache.cold:
                words = salt(self._seed, f"{self._run_salt}{use}")
            shared = shared.with_text_in_front(words)
            if not shared.system and not shared.messages:
                messages = (beginning_with(messages[0], words), *messages[1:])
        elif self._run_salt and not (shared.system or shared.messages or earlier):
            # A prefix begins with the run's salt already. Without one the question does; later turns of a session have it
            # among the earlier ones.
            messages = (beginning_with(messages[0], self._run_salt), *messages[1:])
        count = len(shared.messages)
        messages = (*shared.messages, *messages)
        return Prompt(
            messages,
            shared.system,
            shared.tools,
            number,
            count,
            unique=self._begins_uniquely,
            tokens=content.tokens,
            automatic=self._automatic_ttl,
            cache_key=self._cache_key(number),
        )

    def _content(self, planned: Planned, use: str, tokens: int) -> Prompt:
        """Return what the source of a request makes; a TypeError blames the plugin that makes something else."""
        source = self._source(planned)
        content = source.make(planned, use, tokens)
        if isinstance(content, str):
            content = Prompt.of(content)
        if not isinstance(content, Prompt) or not content.messages:
            raise blamed(
                source.make, TypeError(f"made {content!r}, not text and no Prompt with messages")
            )
        return content

    def _with_row_prefix(self, shared: Prefix, row_prefix: Prefix) -> Prefix:
        """Return the prefix with what a row brings behind it; in front of every section stands the run's salt."""
        opening = row_prefix
        if self._run_salt and not self._begins_uniquely:
            opening = row_prefix.with_text_in_front(self._run_salt)
        tools = (row_prefix if shared.tools else opening).tools
        system = (row_prefix if shared.system else opening).system
        return Prefix((*shared.tools, *tools), (*shared.system, *system), shared.messages)

    def _last_marked(self, cache: Cache) -> str:
        """Return the last part of the prefix that is marked, or would be by a target with marks."""
        parts = ("few_shot", "system", "tools")
        marked_parts = [part for part in parts if part in self._marked_places]
        wanted_parts = [part for part in parts if part in cache.breakpoints]
        return (marked_parts or wanted_parts)[0]

    def _cache_key(self, number: int | None) -> str | None:
        """Return the name of a prefix: the user's, else one that only this prefix of this run has, of at most 64 characters."""
        key = self._marks.key
        if key != "" or number is None:
            return key
        return sha256(f"{self._seed}/{self._run_salt}/{self._name}/{number}".encode()).hexdigest()[
            :_KEY_LENGTH
        ]

    def _number(self, request_id: int) -> int | None:
        if len(self._popularity) < 2:
            return 0 if self._popularity else None
        draw = Random(f"{self._seed}/which/{self._name}/{request_id}").random()
        return bisect_right(self._popularity, draw * self._popularity[-1])

    def _source(self, planned: Planned) -> PromptSource:
        """Return the source of a request, made at its first."""
        name = source_of(self._traffic, planned)
        if name not in self._sources:
            self._sources[name] = SOURCES[name](
                self._seed, self._traffic, self._words, self._overhead
            )
        return self._sources[name]

    def _make_prefix(self, number: int) -> Prefix:
        shared = prefix(
            self._seed,
            self._name,
            number,
            self._cache,
            self._traffic.tools,
            size=self._words,
            places=self._marked_places,
            ttl=self._ttl,
        )
        if self._run_salt and not self._begins_uniquely:
            return shared.with_text_in_front(self._run_salt)
        return shared


# --- what comes before the question -------------------------------------------------------------------------------

_FRAME_WORDS = 30  # what a tool's JSON takes besides its description, in words
_OFFERED_WORDS = 20  # description of a tool that is there to be used, not for its size


@dataclass(frozen=True, slots=True)
class Prefix:
    """Tools, system prompt and example exchanges; any of them may be empty."""

    tools: tuple[Tool, ...] = ()
    system: tuple[Part, ...] = ()
    messages: tuple[Message, ...] = ()

    def with_text_in_front(self, phrase: str) -> Prefix:
        """This prefix with `phrase`, a valid tool name, in front of every section that an engine may put first.

        Where templates put tools differs by model: each section that can come first begins with them.
        """
        tools = self.tools
        system = self.system
        messages = self.messages
        if tools:
            tools = (replace(tools[0], name=f"{phrase}_{tools[0].name}"), *tools[1:])
        if system:
            system = _beginning_with(system, phrase)
        elif messages:
            messages = (beginning_with(messages[0], phrase), *messages[1:])
        return Prefix(tools, system, messages)

    def with_text_at_mark(self, phrase: str, place: str) -> Prefix:
        """This prefix with `phrase` at the end of the block with the mark at `place`: tools, system or few_shot."""
        if place == "tools":
            *tools, tool = self.tools
            return replace(
                self, tools=(*tools, replace(tool, description=f"{tool.description} {phrase}"))
            )
        if place == "system":
            return replace(self, system=closed(self.system, phrase))
        *messages, message = self.messages
        return replace(
            self, messages=(*messages, replace(message, parts=closed(message.parts, phrase)))
        )


def closed(parts: tuple[Part, ...], phrase: str) -> tuple[Part, ...]:
    """Return the parts with `phrase` at the end of the last."""
    *earlier, end = parts
    return (*earlier, replace(end, text=f"{end.text} {phrase}"))


def beginning_with(message: Message, phrase: str) -> Message:
    """Return the message with `phrase` in front."""
    return Message(message.role, _beginning_with(message.parts, phrase), message.more)


def _beginning_with(parts: tuple[Part, ...], phrase: str) -> tuple[Part, ...]:
    """Return the parts with `phrase` in front; a block of the user's own stays as it is."""
    if not parts or parts[0].block is not None:
        return (Part(phrase), *parts)
    head, *rest = parts
    return (Part(f"{phrase} {head.text}", head.ttl), *rest)


def marked(message: Message, ttl: str | None) -> Message:
    """Return the message with a mark at its end."""
    *parts, end = message.parts
    return replace(message, parts=(*parts, replace(end, ttl=ttl)))


def prefix(
    seed: int,
    name: str,
    number: int,
    cache: Cache | None,
    offered: int,
    *,
    size: Vocabulary,
    places: Collection[str],
    ttl: str,
) -> Prefix:
    """Return prefix `number` of the traffic table `name`, with marks of this life (`ttl`) at these places.

    It has tools, a system prompt and examples as the cache table says; None: the offered tools only.
    `offered` tools come after those of the cache table, and are there to be called. `size` turns tokens
    into words.
    """
    use = f"prefix/{name}/{number}"
    in_prefix = cache.tools if cache else 0
    count = 0
    if cache and cache.tools:
        # Words of one description: the share of the tool less what its JSON takes.
        count = size(cache.tools_tokens) // cache.tools - _FRAME_WORDS
    tools = [_tool(seed, f"{use}/tool/{i}", i, max(1, count), size) for i in range(in_prefix)]
    for i in range(offered):
        tools.append(_tool(seed, f"offered/{name}/{i}", in_prefix + i, _OFFERED_WORDS, size))
    if cache is None:
        return Prefix(tuple(tools))
    system: tuple[Part, ...] = ()
    if cache.system_tokens:
        system = (Part(size.text(seed, f"{use}/system", size(cache.system_tokens))),)
    messages = []
    words = max(1, size(cache.few_shot_tokens) // 2)
    for i in range(cache.few_shot):
        for role in (USER, ASSISTANT):
            example = Part(size.text(seed, f"{use}/{role}/{i}", words))
            messages.append(Message(role, (example,)))
    if "tools" in places and tools:
        tools[-1] = replace(tools[-1], ttl=ttl)
    if "system" in places and system:
        system = (replace(system[0], ttl=ttl),)
    if "few_shot" in places and messages:
        messages[-1] = marked(messages[-1], ttl)
    return Prefix(tuple(tools), system, tuple(messages))


def _tool(seed: int, use: str, number: int, count: int, words: Vocabulary) -> Tool:
    """Return one definition with two texts as its input; its name is like no other's of the prompt."""
    verb, noun, parameter, other_parameter, *_ = words.text(seed, f"{use}/names", 4).split()
    if other_parameter == parameter:
        other_parameter = WORDS[WORDS.index(parameter) - 1]
    inputs = {}
    for input_name in (parameter, other_parameter):
        inputs[input_name] = {"type": "string", "description": f"the {input_name}"}
    schema = {"type": "object", "properties": inputs, "required": [parameter]}
    return Tool(f"{verb}_{noun}_{number}", words.text(seed, use, count), json.dumps(schema))
