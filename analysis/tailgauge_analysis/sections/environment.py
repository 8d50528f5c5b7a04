"""The section on the environment: target, versions, workers, and the command and the scenario that reproduce the run.

How well the client measured is in measurement.py; the command itself is made in commands.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field

from tailgauge.thresholds import ENDLESS_S
from tailgauge_analysis.metrics.steady import is_of_tasks
from tailgauge_analysis.reading.frames import Frames
from tailgauge_analysis.reading.run_json import Stretch
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import commands
from tailgauge_analysis.text.formatting import clock_range, count, listed, ms, plain, plural
from tailgauge_analysis.text.json_values import Json, key_lines, table, tables
from tailgauge_analysis.text.quantile import UNPUBLISHED, plain_values
from tailgauge_analysis.text.section import Section, Table, Value
from tailgauge_analysis.verdict import losses
from tailgauge_analysis.verdict.losses import Loss

KEY = "environment"
MOST_MODELS = 10
TABLES_OF_PROTOCOLS = ("sse",)  # of a target: each holds only with its protocol
# Keys of a traffic table without effect on tasks: those of schedules and of other patterns.
NOT_OF_TASKS = {
    "weight",
    "prompt_tokens",
    "prompt_sigma",
    "output_sigma",
    "prompts",
    "session",
    "fan_out",
    "structured",
    "progressive",
    "batch",
    "job",
    "resume",
}
DEFAULT_OUTPUT = 50  # of a traffic table: a reader would take it for the max_tokens of the tasks
# Additions to the calls, and the values that turn them off.
SWITCHES: dict[str, Json] = {
    "retry": {"policy": "none"},
    "hedge": {"policy": "off"},
    "fallback": {"after_s": None},
    "cancel": {"share": 0.0},
    "reader": {"bytes_per_s": None},
}
SIMULATED = "simulated"  # as the URL of a target: the simulated endpoint
NOTE = "Missing: number of requests that were given to the worker and have no row, and the times when these requests were due. Rows lost: rows that were recorded and are in no file."


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerEntry:
    """One worker: its clock, its rows, and what is missing of its share."""

    worker: int
    name: str
    host: str
    state: str
    offset_ns: int | None
    error_ns: int | None
    drift_ppb: int | None
    stamps: str
    reader: str
    priority: str
    requests: int
    chunks: int
    missing_requests: int
    missing: tuple[Stretch, ...]
    found: int
    rows_lost: int
    kept: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Environment:
    """What produced the run, and the command that repeats it."""

    versions: Json
    master: Json
    workers: list[WorkerEntry]
    seed: int | None
    models: list[str]
    scenario_file: str
    overrides: list[str]
    scenario: Json
    reproduce: str | None
    besides: str
    record: Json = field(metadata=UNPUBLISHED)


def compute(run: Run) -> Environment:
    """Collect what run.json and the rows tell of it."""
    record = run.record
    models = sorted(map(str, run.steady.requests["model"].dropna().unique()))
    entries = zip(record["workers"], run.evidence.conservation.workers, strict=True)
    workers = [_worker(run.frames, entry, loss) for entry, loss in entries]
    return Environment(
        versions=record["versions"],
        master=record["master"],
        workers=workers,
        seed=record["seed"],
        models=[plain(model, 100) for model in models[:MOST_MODELS]],
        scenario_file=record["scenario_file"],
        overrides=record["overrides"],
        scenario=plain_values(record["scenario"]),
        reproduce=commands.again(record),
        besides=besides(record),
        record=record,
    )


def _worker(frames: Frames, entry: Json, loss: Loss) -> WorkerEntry:
    worker = entry["worker"]
    lacks = 0
    for name, written in entry["rows"].items():
        lacks += max(0, written - frames.rows.get((name, worker), 0))
    return WorkerEntry(
        worker=worker,
        name=entry["name"],
        host=entry["host"],
        state=entry["state"],
        offset_ns=entry["offset_ns"],
        error_ns=entry["error_ns"],
        drift_ppb=entry["drift_ppb"],
        stamps=entry["stamps"],
        reader=entry["reader"],
        priority=entry["priority"],
        requests=frames.rows.get(("requests", worker), 0),
        chunks=frames.rows.get(("chunks", worker), 0),
        missing_requests=loss.lost,
        missing=loss.missing,
        found=loss.found,
        rows_lost=lacks + sum(loss.unwritten.values()),
        kept=losses.notes(loss),
    )


def besides(run: Json) -> str:
    """Return what else is needed to reproduce the run."""
    text = (
        "The scenario file may have changed since the run; report.html lists the scenario as it ran"
    )
    is_of_locustfile = is_of_tasks(run["scenario"])
    text += "." if is_of_locustfile else ", with all defaults."
    if is_of_locustfile:
        text += " Options that the locustfile adds, and those of the web page, are not part of the command."
    if away := commands.elsewhere(run):
        text += f" {plural(away, 'worker')} ran on other machines: start as many there with `{_worker_command(run)}`."
    if not run["target"].get("simulated") and not run["dry_run"]:
        text += " The target is called again and may answer differently."
    return text


def _worker_command(run: Json) -> str:
    """Return the command of a worker on another machine."""
    if is_of_tasks(run["scenario"]):
        return "locust -f FILE --worker --master-host HOST"
    return "tailgauge worker --master HOST:PORT"


def section(environment: Environment) -> Section:
    """Return the section: the run with its target, the command that repeats it, its workers and its scenario.

    Of a run of Locust's tasks the scenario is listed without the keys that had no effect on it.
    """
    record = environment.record
    target = record["target"]
    url = str(target.get("url") or "unknown")
    is_simulated_elsewhere = target.get("simulated") and url != SIMULATED
    target_texts = [f"{url} (simulated)" if is_simulated_elsewhere else url]
    if target.get("protocol"):
        target_texts.append(f"protocol {target['protocol']}")
    if environment.models:
        noun = "model" if len(environment.models) == 1 else "models"
        target_texts.append(f"{noun} {listed(environment.models, None)}")
    rebuilt_note = ", rebuilt without run.json" if record["rebuilt"] else ""
    master = dict(environment.master)
    # It says whether two processes ran on one boot of a machine, and nothing to a reader.
    master.pop("boot_id", None)
    facts = (
        ("Run", record["run_id"]),
        ("Target", ", ".join(target_texts)),
        ("Started", f"{record['started_at'] or 'unknown'}, state {record['state']}{rebuilt_note}"),
        ("Master", _pairs(master)),
        ("Versions", _pairs(environment.versions)),
        ("Seed", _seed(environment)),
        ("Reproduce", environment.reproduce or _no_command(record)),
    )
    file = ""
    if environment.scenario_file:
        file = f" ({environment.scenario_file})"
    title = f"Scenario{file}, with all defaults; keys without a value are left out"
    scenario = environment.scenario
    if is_of_tasks(scenario):
        title = f"Scenario{file}: the keys that apply to tasks of a locustfile"
        scenario = of_locustfile(scenario, is_simulated=bool(target.get("simulated")))
    return Section(
        name="environment",
        title="Environment",
        facts=facts,
        tables=(_workers(environment.workers),) if environment.workers else (),
        notes=(environment.besides,) if environment.reproduce else (),
        listing=(title, "\n".join(key_lines(scenario))),
        is_folded=True,
    )


def of_locustfile(scenario: Json, *, is_simulated: bool) -> Json:
    """Return the scenario of a run of tasks without the keys that had no effect on it."""
    target = dict(table(scenario, "target"))
    for name in TABLES_OF_PROTOCOLS:
        if name != target.get("protocol"):
            target.pop(name, None)
    stages = dict(table(scenario, "stages"))
    if stages.get("duration_s") == ENDLESS_S:
        del stages["duration_s"]
    traffic_tables = {}
    for name, traffic in tables(scenario, "traffic").items():
        traffic_tables[name] = _task_table(traffic)
    visible = scenario | {
        "target": target,
        "arrival": {"process": table(scenario, "arrival").get("process")},
        "stages": stages,
        "traffic": traffic_tables,
    }
    if not is_simulated:
        visible.pop("simulated", None)
    return visible


def _task_table(traffic: Json) -> Json:
    """Return a traffic table without what only schedules and other patterns read, and without what is off."""
    visible = {}
    for key, value in traffic.items():
        is_off = key in SWITCHES and _is_off(table(traffic, key), SWITCHES[key])
        is_default = key == "output_tokens" and value == DEFAULT_OUTPUT
        if key not in NOT_OF_TASKS and not is_off and not is_default:
            visible[key] = value
    return visible


def _is_off(settings: Json, values: Json) -> bool:
    """Return whether the settings of an addition have the values that turn it off."""
    return all(settings.get(key) == value for key, value in values.items())


def _no_command(run: Json) -> str:
    if is_of_tasks(run["scenario"]):
        return "Start the locustfile again: this run does not have Locust's command line."
    return "A step of an experiment: the report of the experiment has the command, and the scenario is below."


def _seed(environment: Environment) -> str:
    if environment.seed is None:
        return "unknown"
    if is_of_tasks(environment.record["scenario"]):
        return str(environment.seed)
    return f"{environment.seed}: a run with the same seed has the same arrivals and sizes"


def _pairs(tree: Json) -> str:
    return ", ".join(f"{key} {value}" for key, value in tree.items()) or "unknown"


def _workers(workers: Sequence[WorkerEntry]) -> Table:
    columns = (
        ("worker", lambda worker: Value(str(worker.worker), worker.name)),
        ("host", lambda worker: worker.host or "–"),
        ("state", lambda worker: "; ".join([worker.state, *worker.kept])),
        ("clock offset (ms)", _offset),
        ("drift (ppm)", _drift),
        ("timestamps", _timestamps),
        ("requests", _requests),
        ("chunks", lambda worker: count(worker.chunks)),
        ("missing", lambda worker: Value(count(worker.missing_requests), _spans(worker.missing))),
        ("rows lost", lambda worker: count(worker.rows_lost)),
    )
    return Table.of("Workers", workers, columns, NOTE, prose=(1, 2, 5))


def _requests(worker: WorkerEntry) -> Value:
    found = ""
    if worker.found:
        found = f"{count(worker.found)} found"
    return Value(count(worker.requests), found)


def _timestamps(worker: WorkerEntry) -> str:
    """Return `kernel, compiled reader, real-time priority`."""
    reader = ""
    if worker.reader:
        reader = f"{worker.reader} reader"
    priority = ""
    if worker.priority:
        priority = f"{worker.priority} priority"
    return ", ".join(filter(None, (worker.stamps, reader, priority))) or "–"


def _drift(worker: WorkerEntry) -> str:
    if worker.drift_ppb is None:
        return "–"
    return f"{worker.drift_ppb / 1000:.3g}"


def _offset(worker: WorkerEntry) -> Value:
    if worker.offset_ns is None:
        return Value("–")
    error = ""
    if worker.error_ns is not None:
        error = f"± {ms(worker.error_ns / 1e6)}"
    return Value(ms(worker.offset_ns / 1e6), error)


def _spans(missing: Sequence[Stretch]) -> str:
    texts = [clock_range(stretch.from_s, stretch.to_s) for stretch in missing[:3]]
    if len(missing) > 3:
        texts.append(f"and {len(missing) - 3} more")
    return ", ".join(texts)
