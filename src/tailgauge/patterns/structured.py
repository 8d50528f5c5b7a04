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
    """`one_call`: JSON by a schema; `two_calls`: prose, then a call that extracts fields"""
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
        """Whether a second call carries the prose of the first."""
        return self.settings.mode == "two_calls"

    def steps(self, request: Request) -> Steps:
        """Request the fields at once, or the prose first and then its fields in a second call.

        With two calls the request ends as the second; its winner and its text are those of the prose.
        Without prose there is no second call.
        """
        if not self.resends_answers:
            call = self._by_schema(request.prompt, request.output_tokens)
            return done((yield from leg(call, request, self.policies)))
        call = replace(self.call(request.prompt, request.output_tokens), keep_text=True)
        prose = yield from leg(call, request, self.policies)
        if prose.ended not in COMPLETE or not prose.text:  # nothing to put into fields
            return done(prose)
        answer = Message(ASSISTANT, (Part(prose.text),))
        question = Message(USER, (Part(INTO_FIELDS),))
        messages = (*request.prompt.messages, answer, question)
        conversation = replace(request.prompt, messages=messages)
        call = self._by_schema(conversation, self.settings.field_tokens)
        fields = yield from leg(call, request, self.policies, 1)
        is_joined = fields.ended in WITH_ANSWER
        return Done(
            fields.ended,
            winner=prose.attempt,
            joined_at_ns=fields.at_ns if is_joined else None,
            text=prose.text,
        )

    def _by_schema(self, prompt: Prompt, max_tokens: int) -> Call:
        return replace(
            self.call(prompt, max_tokens), schema=SCHEMA, watch_field=True, keep_text=True
        )

    def demand(self, requests: int, input_tokens: int, output_tokens: int) -> Demand:
        """Count the second call too, which reads what the first has written."""
        if not self.resends_answers:
            return super().demand(requests, input_tokens, output_tokens)
        return Demand(
            calls=requests * 2,
            prompts=requests,
            input_tokens=input_tokens + output_tokens,
            output_tokens=output_tokens + requests * self.settings.field_tokens,
        )

    def first_calls(self, prompts: Sequence[Prompt], output_tokens: int) -> tuple[list[Call], int]:
        """Return the call for the prose; the one for its fields follows."""
        calls, _ = super().first_calls(prompts, output_tokens)
        return calls, int(self.resends_answers)
