"""A call as every protocol gives it: what was requested, what answers it, and why it is refused."""

from __future__ import annotations

from dataclasses import dataclass

from tailgauge.simulator.behaviours.billing import PromptTokens
from tailgauge.simulator.behaviours.content import Plan

MAX_BODY_BYTES = 32 * 1024 * 1024
MAX_OUTPUT_TOKENS = 1_000_000


@dataclass(frozen=True, slots=True)
class CallRequest:
    """A call that will be answered."""

    model: str
    max_tokens: int
    input_tokens: int
    stream: bool
    include_usage: bool = False  # OpenAI: a last chunk with the usage
    tool: str | None = None  # name of the first tool; None: it gives none
    thinking: bool = False
    thinking_omitted: bool = False  # whatever the endpoint's own setting is
    schema: bool = False  # the answer is to be a JSON object


@dataclass(frozen=True, slots=True)
class Reply:
    """The answer's identity, the same in every event of its stream, and what it consists of."""

    request: CallRequest
    id: str
    created_s: int
    plan: Plan | None = None  # None: one text
    prompt: PromptTokens | None = None  # None: there is no prefix cache

    @property
    def stop_reason(self) -> str:
        """Why the answer ends."""
        return "max_tokens" if self.plan is None else self.plan.stop_reason


class Refused(Exception):  # noqa: N818 - an answer, not an error of ours
    """A call answered by an error: HTTP status, reason, and the body's field at fault or the provider's error code."""

    def __init__(
        self, status: int, message: str, param: str | None = None, *, error_code: str | None = None
    ) -> None:
        super().__init__(message)
        self.status, self.message, self.param, self.error_code = status, message, param, error_code
