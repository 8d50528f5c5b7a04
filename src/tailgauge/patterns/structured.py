"""Structured: an answer with fields.

Rule: `one_call` asks for JSON by a schema. `two_calls` lets the model write prose first (leg 0), then puts that prose
into fields (leg 1): the second call carries the conversation and what the first one wrote. The request is joined when
the second ended, and fails when either does. The first usable field is watched for in the call with the schema.
"""

from __future__ import annotations

from dataclasses import replace

from tailgauge.call import ASSISTANT, USER, Call, Message, Part, Prompt
from tailgauge.patterns.calls import call_for
from tailgauge.patterns.events import Ask, Done, MakePattern, Pattern
from tailgauge.patterns.leg import ANSWERED, Policies, leg
from tailgauge.patterns.settings import Traffic
from tailgauge.patterns.streaming import done
from tailgauge.rows.schema import OK

SCHEMA = (
    '{"type":"object","properties":{"title":{"type":"string"},"summary":{"type":"string"},'
    '"keywords":{"type":"array","items":{"type":"string"}}},'
    '"required":["title","summary","keywords"],"additionalProperties":false}'
)
INTO_FIELDS = "Put your answer into the fields."


def structured(traffic: Traffic) -> MakePattern:
    """One call with a schema, or prose and then fields."""
    policies, table = Policies(traffic), traffic.structured

    def one_call(ask: Ask) -> Pattern:
        return done((yield from leg(_by_schema(traffic, ask.prompt, ask.output_tokens), ask, policies)))

    def two_calls(ask: Ask) -> Pattern:
        prose = replace(call_for(traffic, ask.prompt, ask.output_tokens), keep_text=True)
        first = yield from leg(prose, ask, policies)
        if first.ended != OK or not first.text:  # nothing to put into fields
            return done(first)
        asked = replace(
            ask.prompt,
            messages=(
                *ask.prompt.messages,
                Message(ASSISTANT, (Part(first.text),)),
                Message(USER, (Part(INTO_FIELDS),)),
            ),
        )
        second = yield from leg(_by_schema(traffic, asked, table.field_tokens), ask, policies, 1)
        return Done(
            second.ended,
            winner=first.attempt,
            joined_at_ns=second.at_ns if second.ended in ANSWERED else None,
            text=first.text,
        )

    return one_call if table.mode == "one_call" else two_calls


def _by_schema(traffic: Traffic, prompt: Prompt, max_tokens: int) -> Call:
    return replace(call_for(traffic, prompt, max_tokens), schema=SCHEMA, watch_field=True)
