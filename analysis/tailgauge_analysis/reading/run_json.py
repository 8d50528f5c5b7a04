"""run.json and workers/<n>.json as models: read by run_record.py, documented in docs/reference/data-format.md.

The files may be damaged, forged or older: a value of another type counts as absent, so that every key has its type.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Annotated, Any, Literal

import pydantic
from pydantic import BaseModel, ConfigDict, Field, OnErrorOmit, ValidationInfo, field_validator
from pydantic.dataclasses import dataclass

from tailgauge_analysis.text.json_values import Json

Whole = Annotated[int, Field(strict=True, gt=-(1 << 61), lt=1 << 61)]
Seconds = Annotated[float, Field(strict=True, ge=0, lt=1e9, allow_inf_nan=False)]
Facts = dict[str, OnErrorOmit[str | bool | Whole]]


class _Strict(BaseModel):
    model_config = ConfigDict(strict=True, extra="ignore", use_attribute_docstrings=True)


class _Tolerant(_Strict):
    @field_validator("*", mode="wrap")
    @classmethod
    def _damaged_is_absent(
        cls, value: Any, handler: Callable[[Any], Any], info: ValidationInfo
    ) -> Any:
        try:
            return handler(value)
        except pydantic.ValidationError:
            return cls.model_fields[str(info.field_name)].get_default(call_default_factory=True)


@dataclass(frozen=True, slots=True)
class Stretch:
    """A part of the run in seconds of its clock; `to_s` None: to the end. `requests` were due in it."""

    from_s: Seconds
    to_s: Seconds | None
    requests: Annotated[Whole, Field(ge=0)] = 0

    def __post_init__(self) -> None:
        if self.to_s is not None and self.to_s < self.from_s:
            raise ValueError("to_s lies before from_s")


class Clock(_Tolerant):
    """A worker's clock against the master's."""

    offset_ns: Whole | None = None
    error_ns: Whole | None = None
    drift_ppb: Whole | None = None


class WorkerJson(_Tolerant):
    """An entry of `workers` in run.json, and the worker's own record, workers/<n>.json."""

    worker: Whole | None = None
    """its number"""
    name: str = ""
    """Locust's name of it"""
    host: str = ""
    """host name"""
    pid: Whole | None = None
    """process id"""
    state: Literal["starting", "running", "drained", "failed", "lost", "unknown"] = "unknown"
    """starting, running, drained, failed or lost"""
    clock: Clock = Clock()
    """offset_ns, error_ns and drift_ppb against the master's clock"""
    stamps: str = ""
    """timestamp source: kernel or user"""
    reader: str = ""
    """socket reader: compiled or python; empty in dry runs"""
    priority: str = ""
    """of the compiled reader over other threads of its core: real-time or normal"""
    why: str = ""
    """reason of a failure"""
    leased: Whole | None = None
    """requests leased to it"""
    counts: Json = {}
    """dispatched, client_drop, not_reached, not_due (of these, turns of a session that was over, or still thinking at the end), came_late (of not_reached, overdue on arrival from the master), ended, censored"""
    rows: dict[str, OnErrorOmit[Whole]] = {}
    """rows by table"""
    unwritten: dict[str, OnErrorOmit[Annotated[Whole, Field(gt=0)]]] = {}
    """recorded rows by table that could not be written"""
    task_errors: dict[str, OnErrorOmit[Annotated[Whole, Field(gt=0)]]] = {}
    """errors raised by tasks, with file, line and count"""
    missing: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s, requests: intervals whose leased arrivals left no row"""
    silent: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s: intervals without a message; to_s null: until the end"""
    late_s: Seconds | None = None
    """start of a late joiner; null for others"""


class EngineTokens(_Strict):
    """Known whole or not at all."""

    engine: str = Field(min_length=1)
    before: Whole
    after: Whole


class EngineWork(_Tolerant):
    """Tokens of one engine over the run."""

    engine: str = ""
    output: Whole | None = None
    prompt: Whole | None = None
    cached: Whole | None = None


class PatternFacts(_Tolerant):
    """What the analysis needs to know of a traffic pattern; the defaults are those of one streamed call."""

    answer: Literal["single", "pieces", "earliest_leg", "join", "turnaround"] = "single"
    """what counts as the answer of a request: single, pieces, earliest_leg, join or turnaround"""
    like: str = ""
    """pattern that sends the same requests with the same settings"""
    price_share: Annotated[float, Field(gt=0, le=1)] = 1.0
    """share of the list price that its tokens cost"""


class Precision(_Tolerant):
    """Looks at a run whose objectives ask for a precision."""

    confidence: Annotated[float, Field(gt=0.5, lt=1)] | None = None
    looks: Annotated[Whole, Field(ge=0)] = 0
    until_s: Seconds | None = None
    requests: Annotated[Whole, Field(gt=0)] | None = None


class RunJson(_Tolerant):
    """run.json; a damaged one may lack keys."""

    schema_version: Whole | None = None
    """version of this format"""
    run_id: str = ""
    """`<UTC>-<scenario>-<4 hex>`, as the folder"""
    state: Literal[
        "running",
        "complete",
        "known",
        "interrupted",
        "cut_short",
        "guarded",
        "stopped",
        "failed",
        "unusable",
        "error",
    ] = "interrupted"
    """running, complete, known (see `precision`), interrupted, cut_short (by Locust), guarded, stopped (by a stop rule), failed, unusable (see `preflight`) or error (internal)"""
    stopped: str = ""
    """when and why a stop rule ended the run"""
    precision: Precision = Precision()
    """confidence, looks before the end; if known also until_s and requests (arrivals before the steady stage ended)"""
    scenario: Json = {}
    """the scenario with all defaults, without secrets"""
    patterns: dict[str, OnErrorOmit[PatternFacts]] = {}
    """answer, like, price_share by pattern"""
    plugins: list[OnErrorOmit[Facts]] = []
    """name, file (without its folder), sha256 and given (as named by the user)"""
    scenario_file: str = ""
    """as given by the user; empty in a step of an experiment"""
    overrides: list[OnErrorOmit[str]] = []
    """changes on the command line"""
    command: list[OnErrorOmit[str]] = []
    """Locust's command line, by arguments, of a run of tasks"""
    started_at: str = ""
    """start, ISO 8601 UTC; a label only"""
    start_at_ns: Whole | None = None
    """zero of the run clock on the master's monotonic clock"""
    admission_end_at_ns: Whole | None = None
    """the same when admission ended; null before"""
    ended_at_ns: Whole | None = None
    """the same at the end of the drain; null before"""
    seed: Whole | None = None
    """seed of arrivals, sizes and prompts"""
    arrival: str = ""
    """open, closed or partly open"""
    dry_run: bool = False
    """absent or false: real time"""
    trace: Json = {}
    """of a replayed trace: rows read, and dropped by reason"""
    prompt_files: Json = {}
    """by traffic table: file, rows read and usable, dropped by reason, first dropped rows"""
    estimate: Json = {}
    """calls, tokens and cost expected before the run"""
    tokens_per_word: Any = None
    """tokens per word of prompts, measured by the preflight"""
    overhead_tokens: Any = None
    """tokens of a prompt beyond its text, measured by the preflight"""
    prompt_sizes: Json = {}
    """by traffic table with generated questions alone: `exact` (engine's tokenizer) or `estimate`"""
    target: Facts = {}
    """url, simulated, protocol"""
    second_target: Facts = {}
    """the same; null without one"""
    versions: Facts = {}
    """of tailgauge and its dependencies"""
    master: Facts = {}
    """host, pid, kernel, cpu_model, cpu_count, python, ..."""
    workers: list[Any] = []
    """one entry each, see below"""
    conservation: Json = {}
    """scheduled, dispatched, client_drop, not_reached, lost, ended by class, censored; without preflight"""
    not_leased: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s, requests: intervals whose arrivals no worker got"""
    master_stalled: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s: intervals in which the master did not run"""
    engines: Json = {}
    """engine by target (main, second), with exact output lengths"""
    engine_tokens: EngineTokens | None = None
    """engine (vLLM or llama.cpp), before, after: its own token counter (/metrics); null unless users cancel"""
    engine_cache: Json = {}
    """engine, cached, prompt: prompt tokens by its own counters; where the preflight's usage does not tell"""
    engine_work: list[OnErrorOmit[EngineWork]] = []
    """engine, output, prompt, cached: tokens by each engine's own counters; with hedges"""
    engine_completed: Whole | None = None
    """calls completed by vLLM's own counter; with users who cancel and a gateway as second target"""
    notes: list[OnErrorOmit[str]] = []
    """incidents noted by the master"""
    preflight: list[OnErrorOmit[Facts]] = []
    """request_id, target, url, model, words, input_tokens, ended, status, error_type, message of each; whether needed, wanted whole, streamed; the target's models where it may have refused the model"""
    verdict: Any = None
    """verdict, reasons, outcome and exit_code; null before a report"""
