"""Structured: an answer with fields.

`one_call` requests JSON by a schema. `two_calls` lets the model write prose first (leg 0), then puts that prose into
fields (leg 1): the second call carries the conversation and what the first one wrote. The request is joined when the
second ended, and fails when either does. The first usable field is watched for in the call with the schema.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Literal

from tailgauge.call import ASSISTANT, SCHEMAS, USER, Call, Message, Part, Prompt
from tailgauge.patterns.events import Done, Request, Steps
from tailgauge.patterns.legs import done, leg
from tailgauge.patterns.pattern import Demand, Pattern
from tailgauge.rows.schema import COMPLETE, WITH_ANSWER
from tailgauge.table import Table, Tokens

SCHEMA = (
    '{"type":"object","properties":{"title":{"type":"string"},"summary":{"type":"string"},'
    '"keywords":{"type":"array","items":{"type":"string"}}},'
    '"required":["title","summary","keywords"],"additionalProperties":false}'
)
INTO_FIELDS = "Put your answer into the fields."


class StructuredSettings(Table):
    """An answer with fields, with `pattern = "structured"`."""

    mode: Literal["one_call", "two_calls"] = "one_call"
    """`one_call`: JSON by a schema; `two_calls`: prose, then a second call that extracts fields"""
    field_tokens: Tokens = 30
    """`two_calls`: `max_tokens` of the second call"""


class Structured(Pattern):
    """One call with a schema, or prose and then fields."""

    name = "structured"
    summary = "an answer with fields"
    settings_type = StructuredSettings
    settings: StructuredSettings
    uses = frozenset({"retry", "session"})
    protocol_needs = frozenset({SCHEMAS})
    dry_run_note = "the time of the first field is not known in a dry run"

    @property
    def resends_answers(self) -> bool:
        """The second call carries the prose."""
        return self.settings.mode == "two_calls"

    def steps(self, request: Request) -> Steps:
        """The fields at once, or prose first."""
        if not self.resends_answers:
            call = self._by_schema(request.prompt, request.output_tokens)
            return done((yield from leg(call, request, self.policies)))
        prose = replace(self.call(request.prompt, request.output_tokens), keep_text=True)
        first = yield from leg(prose, request, self.policies)
        if first.ended not in COMPLETE or not first.text:  # nothing to put into fields
            return done(first)
        more = Message(ASSISTANT, (Part(first.text),)), Message(USER, (Part(INTO_FIELDS),))
        conversation = replace(request.prompt, messages=(*request.prompt.messages, *more))
        call = self._by_schema(conversation, self.settings.field_tokens)
        second = yield from leg(call, request, self.policies, 1)
        joined_at_ns = second.at_ns if second.ended in WITH_ANSWER else None
        return Done(second.ended, winner=first.attempt, joined_at_ns=joined_at_ns, text=first.text)

    def _by_schema(self, prompt: Prompt, max_tokens: int) -> Call:
        return replace(
            self.call(prompt, max_tokens), schema=SCHEMA, watch_field=True, keep_text=True
        )

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """The second call reads what the first has written."""
        if not self.resends_answers:
            return super().demand(requests, input_tokens, output_tokens)
        fields = requests * self.settings.field_tokens
        return Demand(requests * 2, requests, input_tokens + output_tokens, output_tokens + fields)

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """The prose; its fields follow."""
        return super().first_calls(prompts, output_tokens)[0], int(self.resends_answers)
