"""The calls before a run: whether each target and model can be used, and how many tokens a word has there.

Plain calls whatever the patterns, streamed unless none of the run's are, numbered -1, -2, ... and outside every statistic. Tokens are learnt
from the usage of two prompts of different size, which works for every protocol. Where the engine also tells the tokens of
each word, prompts are made of words of one token: then a prompt has exactly the tokens that were asked for, template and
salt included, which the usage of both prompts proves or refutes.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any, NamedTuple

from tailgauge.call import JOB_SUBMIT, JOBS, MAIN, MESSAGE, SECOND, Call, Part, Prompt
from tailgauge.patterns.settings import AUTOMATIC
from tailgauge.patterns.table import PATTERNS, Traffic, pattern_of
from tailgauge.plan.spend_limit import FRAME_TOKENS, MARGIN, Sizing
from tailgauge.prompts.maker import marked
from tailgauge.prompts.words import WORDS, text
from tailgauge.protocols.protocol import Adaptation
from tailgauge.protocols.table import PROTOCOLS
from tailgauge.rows.schema import CONNECT_ERROR, OVERLOADED, RATE_LIMITED, SERVED, AttemptRow
from tailgauge.scenario.model import Scenario
from tailgauge.schedule.settings import TASKS, TRACE

SHORT_WORDS = 32
LONG_WORDS = 232
MAX_PREFIXES = 1000  # that are written before a run
OUTPUT_TOKENS = 16
USABLE = SERVED | {RATE_LIMITED, OVERLOADED}  # outcomes with which a run makes sense
_PLAUSIBLE = (0.2, 20.0)  # tokens a word of our list
_MOST_AROUND = 1_000_000  # tokens around a prompt
_CACHE_KEY = "preflight"  # of prompts that have no prefix
LEAST_WORDS = 16  # of one token, so that prompts differ soon after their beginning


_LOADING = re.compile(
    r"\bload(?:ing|s)?\b.{0,40}\bmodel|\bmodel\b.{0,60}\b(?:loading|warming)|starting up",
    re.IGNORECASE | re.DOTALL,
)
_NOT_READY = {502, 503, 504}
READINESS_ID = -1_000_000  # of the first call that asks whether a target is ready


class PreflightCall(NamedTuple):
    """One call of the preflight; a `needed` one that fails ends the run."""

    request_id: int
    traffic: str
    model: str
    words: int
    call: Call
    needed: bool


class Learnt(NamedTuple):
    """What a target counts: for a word of ours, and for everything around a prompt."""

    tokens_per_word: float = 1.0
    overhead_tokens: int = 0
    known: bool = False
    words: Sequence[str] = ()  # of one token each, where the engine tells
    short_prompts: Sequence[
        tuple[str, str, int]
    ] = ()  # target, model and tokens, of all but the first model

    def facts(self, scenario: Scenario) -> dict[str, Any]:
        """Plain values for run.json; null if the target does not report tokens."""
        is_known = self.known
        return {
            "tokens_per_word": self.tokens_per_word if is_known else None,
            "overhead_tokens": self.overhead_tokens if is_known else None,
            "prompt_sizes": dict.fromkeys(
                sized_tables(scenario), "exact" if self.words else "estimate"
            ),
        }


def preflight_calls(
    scenario: Scenario, run: str = "", unmarked: Collection[str] = ()
) -> list[PreflightCall]:
    """Return a short prompt for each target and model, and a long one for the first; jobs, where there is nothing else.

    `run`: salt of the prompts, so that no cache knows them from another run. They have a cache mark where the run's
    prompts have: a target that refuses marks does so now. `unmarked`: targets that get none. The long one may fail: then
    tokens per word stay unknown.
    """
    tables = scenario.traffic.values()
    only_jobs = all(JOBS in PATTERNS[table.pattern].protocol_needs for table in tables)
    kind = JOB_SUBMIT if only_jobs else MESSAGE
    planned = []
    for target_and_model, traffic in scenario.models().items():
        planned.append((target_and_model, traffic, SHORT_WORDS, True))
        if len(planned) == 1:
            planned.append((target_and_model, traffic, LONG_WORDS, False))
    calls = []
    for number, (target_and_model, traffic, words, needed) in enumerate(planned, 1):
        target, model = target_and_model
        output = min(scenario.traffic[traffic].output_tokens, OUTPUT_TOKENS)
        prompt = Prompt.of(f"{run} {text(scenario.seed, str(-number), words)}".lstrip())
        prompt = _marked(prompt, scenario, target_and_model, unmarked)
        stream = _streams(scenario, target_and_model)
        call = Call(prompt, output, model=model, target=target, kind=kind, stream=stream)
        calls.append(PreflightCall(-number, traffic, model, words, call=call, needed=needed))
    return calls


def is_loading(status: int | None, message: str | None) -> bool:
    """Return whether a target says that its model is still loading."""
    return status == 503 and _LOADING.search(message or "") is not None


def may_become_ready(row: AttemptRow) -> bool:
    """Return whether the end of a call is that of a target, or of one behind a gateway, that is still loading."""
    is_refused = row.ended == CONNECT_ERROR and row.error_type in {"tcp", "dns", "closed", "reset"}
    return is_refused or row.status in _NOT_READY


def readiness_calls(scenario: Scenario) -> list[PreflightCall]:
    """Return a short prompt for each target."""
    first_calls = {}
    for call in reversed(preflight_calls(scenario)):
        first_calls[call.call.target] = call
    calls = []
    for number, call in enumerate(first_calls.values()):
        calls.append(call._replace(request_id=READINESS_ID - number))
    return calls


def _streams(scenario: Scenario, target_and_model: tuple[str, str]) -> bool:
    """Return whether a call of the run to this target and model is streamed."""
    for traffic in scenario.traffic.values():
        for target, model in pattern_of(traffic).models():
            is_same = (target, model or scenario.target_of(target).model) == target_and_model
            if is_same and traffic.stream:
                return True
    return False


def _marked(
    prompt: Prompt, scenario: Scenario, target_and_model: tuple[str, str], unmarked: Collection[str]
) -> Prompt:
    """Return the prompt marked as the first traffic table that marks its prompts for this target and model; as it is
    without one.

    A mark is on the question, or of the whole prompt where the table has it set automatically. `unmarked`: targets whose
    engines cache without marks. A table without marks may still give the prompt a key of the cache.
    """
    for traffic in scenario.traffic.values():
        cache = traffic.cache
        if cache is None or (traffic.target, scenario.model_of(traffic)) != target_and_model:
            continue
        marks = scenario.marks(traffic, unmarked)
        places = marks.places.intersection(cache.breakpoints)
        key = _CACHE_KEY if marks.key == "" else marks.key
        if places:
            (message,) = prompt.messages
            ttl = marks.ttl(cache)
            question = message
            if places - {AUTOMATIC}:
                question = marked(message, ttl)
            automatic = ttl if AUTOMATIC in places else None
            return replace(prompt, messages=(question,), automatic=automatic, cache_key=key)
        if key is not None:
            return replace(prompt, cache_key=key)
    return prompt


def is_marked(prompt: Prompt) -> bool:
    """Return whether a prompt of the preflight has a cache mark."""
    parts: list[Part] = []
    for message in prompt.messages:
        parts += message.parts
    return prompt.automatic is not None or any(part.ttl is not None for part in parts)


def exact_targets(scenario: Scenario) -> dict[str, str | None]:
    """Return the targets of calls that ask for exact answers, with the engine that the scenario names."""
    used: set[str] = set()
    for table in scenario.traffic.values():
        if table.output == "exact":
            used.update(target for target, _ in pattern_of(table).models())
    engines: dict[str, str | None] = {}
    for target in (MAIN, SECOND):
        if target in used:
            engines[target] = scenario.target_of(target).engine
    return engines


def unmarked(adaptations: Mapping[str, Adaptation]) -> frozenset[str]:
    """Return the targets whose engines cache without marks."""
    targets = set()
    for target, adaptation in adaptations.items():
        if adaptation.automatic_cache is not None:
            targets.add(target)
    return frozenset(targets)


def learn(tokens: dict[int, int]) -> Learnt:
    """Fit tokens per word and overhead to the input tokens of both prompt sizes; unknown if a value is missing or implausible."""
    if SHORT_WORDS not in tokens or LONG_WORDS not in tokens:
        return Learnt()
    slope = (tokens[LONG_WORDS] - tokens[SHORT_WORDS]) / (LONG_WORDS - SHORT_WORDS)
    overhead = max(0, round(tokens[SHORT_WORDS] - slope * SHORT_WORDS))
    is_plausible = _PLAUSIBLE[0] <= slope <= _PLAUSIBLE[1] and overhead <= _MOST_AROUND
    if is_plausible:
        return Learnt(slope, overhead, known=True)
    return Learnt()


def learn_words(
    tokens: Mapping[int, int], calls: Sequence[PreflightCall], counts: Mapping[str, int]
) -> Learnt | None:
    """Return what is learnt where the engine tells the tokens of each word; None if the usages do not bear that out."""
    texts = {call.words: _words_of(call) for call in calls}
    # The totals as they would be if every word had one token.
    totals = {}
    for size, total in tokens.items():
        extra = sum(counts.get(word, 1) - 1 for word in texts[size])
        totals[size] = total - extra
    learnt = learn(totals)
    words = [word for word in WORDS if counts.get(word) == 1]
    is_proven = learnt.known and learnt.tokens_per_word == 1 and len(words) >= LEAST_WORDS
    if not is_proven:
        return None
    return learnt._replace(words=words)


def _words_of(call: PreflightCall) -> list[str]:
    """Return the counted words of a prompt, without the salt before them."""
    text = call.call.prompt.messages[0].parts[0].text
    return text.split(" ")[-call.words :]


def sized_tables(scenario: Scenario) -> list[str]:
    """Return the traffic tables whose prompts are one generated question and nothing else, at the model that is asked for its tokens."""
    if scenario.arrival.process in {TASKS, TRACE}:
        return []
    main_model = next(iter(scenario.models()))
    names = []
    for name, table in scenario.traffic.items():
        is_alone = _is_generated(table) and table.cache is None
        if is_alone and (table.target, scenario.model_of(table)) == main_model:
            names.append(name)
    return names


def sizing(scenario: Scenario, learnt: Learnt) -> Sizing:
    """Return how prompts are sized: generated ones by the preflight's token counts with a margin, if all are such, else by bytes."""
    is_alike = scenario.arrival.process != TASKS and len(scenario.models()) == 1
    if not (learnt.known and is_alike and all(map(_is_generated, scenario.traffic.values()))):
        return Sizing()
    words = learnt.words or WORDS
    text_bytes = sum(len(word) + 1 for word in words)  # each word with a space
    per_byte = min(1.0, MARGIN * learnt.tokens_per_word * len(words) / text_bytes)
    return Sizing(per_byte, max(FRAME_TOKENS, 2 * learnt.overhead_tokens))


def _is_generated(traffic: Traffic) -> bool:
    """Return whether prompts consist of generated words only: no files, no answers of the model, no tool definitions."""
    grows = traffic.session.grow and traffic.session.turns_mean > 1
    repeats = pattern_of(traffic).resends_answers
    tools = traffic.tools or (traffic.cache.tools if traffic.cache else 0)
    return traffic.prompts.is_generated and not (grows or repeats or tools)


def writes(
    scenario: Scenario, prefixes_of: Callable[[str], Iterable[Prompt]], first_id: int
) -> Iterator[PreflightCall]:
    """Yield a call without output for each prefix that is to be written before the run; numbered downwards.

    `prefixes_of`: the prompts that write the prefixes of a traffic table.
    """
    for name, traffic in scenario.traffic.items():
        if traffic.cache is None or not traffic.cache.pre_warm:
            continue
        model = scenario.model_of(traffic)
        protocol = scenario.target_of(traffic.target).protocol
        tokens = PROTOCOLS[protocol].least_output_tokens
        for prompt in prefixes_of(name):
            call = Call(prompt, tokens, model=model, target=traffic.target, stream=False)
            yield PreflightCall(first_id, name, model, 0, call, needed=False)
            first_id -= 1


def prefixes(scenario: Scenario) -> int:
    """Calls that write prefixes before the run."""
    count = 0
    for traffic in scenario.traffic.values():
        if traffic.cache is not None and traffic.cache.pre_warm:
            count += traffic.cache.prefixes
    return count
