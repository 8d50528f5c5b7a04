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
    """number of the worker"""
    name: str = ""
    """Locust's name of the worker"""
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
    """what read its sockets: compiled or python; empty in older runs and dry runs"""
    priority: str = ""
    """whether the compiled reader goes before other threads of its core: real-time or normal; empty without one"""
    why: str = ""
    """reason of a failure"""
    leased: Whole | None = None
    """requests leased to it"""
    counts: Json = {}
    """dispatched, client_drop, not_reached, not_due (of these, turns whose session was over or still thinking at the end of the run),
    came_late (of not_reached, what was overdue when it arrived from the master), ended, censored
    """
    rows: dict[str, OnErrorOmit[Whole]] = {}
    """rows by table"""
    unwritten: dict[str, OnErrorOmit[Annotated[Whole, Field(gt=0)]]] = {}
    """rows by table that were recorded and could not be written"""
    task_errors: dict[str, OnErrorOmit[Annotated[Whole, Field(gt=0)]]] = {}
    """what tasks of a locustfile raised, with file and line, and how often"""
    missing: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s, requests: intervals of the run whose leased arrivals left no row"""
    silent: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s: intervals without a message from the worker; to_s null: until the end"""
    late_s: Seconds | None = None
    """when a late joiner started; null for others"""


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
    """`<UTC>-<scenario>-<4 hex>`, the folder's name"""
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
    """running, complete, known (and ended, see `precision`), interrupted, cut_short (by Locust's -t or Stop), guarded (a guard's limit was
    reached), stopped (by a stop rule), failed, unusable (the target, see preflight) or error (an internal one)
    """
    stopped: str = ""
    """when and why a stop rule ended the run, else empty"""
    precision: Precision = Precision()
    """where objectives ask for one: confidence, looks before the end; of a run that ended as known also until_s and requests (arrivals
    before the end of its steady stage)
    """
    scenario: Json = {}
    """the resolved scenario with all defaults, without secrets"""
    patterns: dict[str, OnErrorOmit[PatternFacts]] = {}
    """by name, of the patterns in the scenario: answer, like, price_share"""
    plugins: list[OnErrorOmit[Facts]] = []
    """name, file (without its folder), sha256 and given (as the user named it) of each loaded plugin"""
    scenario_file: str = ""
    """its file or name as the user gave it; empty in a step of an experiment"""
    overrides: list[OnErrorOmit[str]] = []
    """changes made on the command line"""
    command: list[OnErrorOmit[str]] = []
    """Locust's command line that repeats a run of tasks, by arguments, else empty"""
    started_at: str = ""
    """wall-clock start, ISO 8601 UTC; a label only"""
    start_at_ns: Whole | None = None
    """the master's monotonic clock at the zero of the run clock"""
    admission_end_at_ns: Whole | None = None
    """the master's clock when admission ended; null before that"""
    ended_at_ns: Whole | None = None
    """the master's clock at the end of the drain; null before that"""
    seed: Whole | None = None
    """seed of arrivals, sizes and prompts"""
    arrival: str = ""
    """open, closed or partly open"""
    dry_run: bool = False
    """true: a dry run; absent or false: real time"""
    trace: Json = {}
    """of a replayed trace: rows read, and dropped by reason; absent without one"""
    prompt_files: Json = {}
    """by traffic table with a prompt file: file, rows read and usable, dropped by reason, first dropped rows"""
    estimate: Json = {}
    """calls, tokens and cost expected before the run, null if unknown"""
    tokens_per_word: Any = None
    """tokens per word of the prompts, measured by the preflight; null if unknown"""
    overhead_tokens: Any = None
    """tokens of a prompt beyond its text, measured by the preflight; null if unknown"""
    prompt_sizes: Json = {}
    """by traffic table with generated questions alone: `exact` (the engine's tokenizer) or `estimate` (tokens per word)
    """
    target: Facts = {}
    """url, simulated, protocol"""
    second_target: Facts = {}
    """the same of the second target; null without one"""
    versions: Facts = {}
    """versions of tailgauge and its dependencies"""
    master: Facts = {}
    """host, pid, kernel, cpu_model, cpu_count, python and other facts that identify the machine"""
    workers: list[Any] = []
    """one entry per worker, see below"""
    conservation: Json = {}
    """scheduled, dispatched, client_drop, not_reached, lost, ended by class, censored; without preflight"""
    not_leased: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s, requests: intervals of the run whose arrivals no worker got"""
    master_stalled: list[OnErrorOmit[Stretch]] = []
    """from_s, to_s: intervals in which the master itself did not run"""
    engines: Json = {}
    """engine by target (main, second), where exact output lengths are asked for"""
    engine_tokens: EngineTokens | None = None
    """the engine's own token counter (/metrics): engine (vLLM or llama.cpp), before, after; null if users do not cancel or the page
    could not be read
    """
    engine_cache: Json = {}
    """engine, cached, prompt: prompt tokens by the engine's own counters, and those out of its cache; read where the preflight's
    usage does not tell
    """
    engine_work: list[OnErrorOmit[EngineWork]] = []
    """engine, output, prompt, cached: tokens by each engine's own counters; read where calls are hedged
    """
    engine_completed: Whole | None = None
    """calls completed by vLLM's own counter; read where users cancel and the second target is a gateway
    """
    notes: list[OnErrorOmit[str]] = []
    """incidents that the master noted"""
    preflight: list[OnErrorOmit[Facts]] = []
    """request_id, target, url, model, words, input_tokens, ended, status, error_type, message of each preflight request;
    whether it was needed, wanted whole, and streamed; models that the target lists, where it may have refused the model"""
    verdict: Any = None
    """verdict, reasons, outcome and exit_code once a report was made; null before that"""
