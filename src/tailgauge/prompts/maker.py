"""Makes the prompts of one traffic table: ahead of need, never on the hot path.

A prompt depends on the run's seed, its request's id and, in a session, on the turns before; so any worker makes the same
one. After the prefix that it shares with others it opens with random words: no cache helps by accident.

    prompt      [tools] [system] [examples] [earlier turns] question
    question    the text of the prompt file, or the blocks of the trace, or seeded words of the size in the schedule
    salt        with `cold`, in front of everything; it differs by request and by leg
"""

from __future__ import annotations

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate
from random import Random

from tailgauge.call import ASSISTANT, USER, Message, Part, Prompt
from tailgauge.patterns.table import Traffic, pattern_of
from tailgauge.prompts.prefix import Prefix, marked, opened, prefix
from tailgauge.prompts.words import salt, text
from tailgauge.schedule.schedule import Planned

BLOCK_TOKENS = 512  # of a trace's block
_KEPT_BYTES = 64_000_000  # of prefixes and of blocks each, about
_WORD_BYTES = 7
_WARM_UP = "Ready?"


class Maker:
    """Prompts of the traffic table `name`.

    `words_per_token` turns sizes into words; `overhead_tokens` is what the target counts for an empty question.
    `marks`: whether the protocol has cache marks; without, none is set.
    """

    def __init__(
        self,
        seed: int,
        traffic: Traffic,
        name: str,
        words_per_token: float = 1.0,
        overhead_tokens: int = 0,
        *,
        marks: bool = True,
    ) -> None:
        self._seed, self._traffic, self._name = seed, traffic, name
        self._words_per_token, self._overhead = words_per_token, overhead_tokens
        self._marks = marks
        self._sizes = pattern_of(traffic).prompt_sizes
        self._cache = cache = traffic.cache
        weights = (k**-cache.zipf for k in range(1, cache.prefixes + 1)) if cache else ()
        self._popularity = list(accumulate(weights))
        shared_words = self._words(cache.prefix_tokens) if cache else 1
        self._prefix = lru_cache(_kept(shared_words))(self._make_prefix)
        self._block = lru_cache(_kept(self._words(BLOCK_TOKENS)))(self._make_block)

    def make(
        self, planned: Planned, turn: int = 0, history: Sequence[tuple[str, str]] = ()
    ) -> tuple[Prompt, ...]:
        """The prompts of turn `turn` of what `planned` begins (whose `request_id` is that of turn 0), one a leg.

        `history` holds the questions and answers of the turns before; it is used where the session grows, and an
        exchange without an answer is left out.
        """
        request_id = planned.request_id + turn
        session = (
            planned.turns != 0
        )  # the users of a closed loop have none: each turn is a request of its own
        number = self._number(planned.request_id if session else request_id)
        earlier = tuple(
            Message(role, (Part(piece),))
            for exchange in (history if session and self._traffic.session.grow else ())
            if all(exchange)
            for role, piece in zip((USER, ASSISTANT), exchange, strict=True)
        )
        return tuple(
            self._leg(planned, request_id, leg, tokens, number, earlier)
            for leg, tokens in enumerate(self._sizes(planned.prompt_tokens))
        )

    def pre_warm(self) -> Iterator[Prompt]:
        """One prompt for each prefix that writes it and has no question; most popular first."""
        for number in range(len(self._popularity)):
            shared = self._prefix(number)
            messages = (*shared.messages, Message(USER, (Part(_WARM_UP),)))
            yield Prompt(messages, shared.system, shared.tools, number, len(shared.messages))

    def _leg(
        self,
        planned: Planned,
        request_id: int,
        leg: int,
        tokens: int,
        number: int | None,
        earlier: tuple[Message, ...],
    ) -> Prompt:
        cache = self._cache
        use = f"{request_id}/{leg}" if leg else str(request_id)
        question = Message(USER, (Part(self._question(planned, use, tokens)),))
        if cache is not None and self._marks and "last" in cache.breakpoints:
            question = marked(question, cache.ttl)
        shared = self._prefix(number or 0)
        messages = (*earlier, question)
        unique = False
        if cache is not None and (cache.cold or cache.volatile == "front"):
            words, unique = salt(self._seed, use) if cache.cold else f"{request_id}", True
            shared = shared.opening(words)
            if not shared.system and not shared.messages:
                messages = (opened(messages[0], words), *messages[1:])
        elif cache is not None and cache.volatile == "marked":
            place = next(one for one in ("few_shot", "system", "tools") if one in cache.breakpoints)
            shared = shared.closing(f"This is request {request_id}.", place)
        return Prompt(
            (*shared.messages, *messages), shared.system, shared.tools, number, len(shared.messages), unique
        )

    def _number(self, request_id: int) -> int | None:
        if len(self._popularity) < 2:
            return 0 if self._popularity else None
        draw = Random(f"{self._seed}/which/{self._name}/{request_id}").random()
        return bisect_right(self._popularity, draw * self._popularity[-1])

    def _question(self, planned: Planned, use: str, tokens: int) -> str:
        source = planned.source or {}
        if source.get("text"):
            return str(source["text"])
        if source.get("blocks"):
            return self._of_blocks(source["blocks"], use, tokens)
        return text(self._seed, use, self._words(tokens - self._overhead))

    def _of_blocks(self, blocks: Sequence[int], use: str, tokens: int) -> str:
        """The trace's blocks, and more words where they are not enough.

        Only the last block is ever cut, so that requests share exactly what they share in the trace.
        """
        full, rest = divmod(tokens, BLOCK_TOKENS)
        parts = [self._block(block) for block in blocks[:full]]
        if tokens > len(blocks) * BLOCK_TOKENS:
            parts.append(text(self._seed, use, self._words(tokens - len(blocks) * BLOCK_TOKENS)))
        elif rest:
            parts.append(" ".join(self._block(blocks[full]).split(" ")[: self._words(rest)]))
        return " ".join(parts)

    def _make_prefix(self, number: int) -> Prefix:
        size = self._words
        return prefix(self._seed, self._name, number, self._cache, self._traffic.tools, size, self._marks)

    def _make_block(self, block: int) -> str:
        return text(self._seed, f"block/{block}", self._words(BLOCK_TOKENS))

    def _words(self, tokens: int) -> int:
        return max(1, round(tokens * self._words_per_token))


def _kept(words: int) -> int:
    """How many texts of so many words are kept."""
    return max(8, min(4096, _KEPT_BYTES // (_WORD_BYTES * words)))
