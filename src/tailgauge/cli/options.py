"""What the commands share: options, also those that set keys of a scenario, number types, and runs that are given by name.

The exit codes are here too, as the help of each command lists them.

Click prints a paragraph that begins with \\b line by line. errors.py defines the codes.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import click

from tailgauge.errors import Exit, UsageError
from tailgauge.live import screen
from tailgauge.rows.object_store import is_remote, local, staged
from tailgauge.rows.text_file import MISSING, refusal
from tailgauge.suggestions import SECONDS, number_and_unit

_Command = TypeVar("_Command", bound=Callable[..., Any])

# Keys of tailgauge_analysis.metrics.definitions.TOOLS, which the CLI does not import before it is used.
TOOLS = ("vllm", "aiperf", "guidellm", "genai-bench", "mlperf")

MEANINGS = {
    Exit.INTERNAL: "internal error; the message names the file with the traceback",
    Exit.USAGE: "wrong usage, or an invalid scenario",
    Exit.INTERRUPTED: "interrupted; recorded rows are kept and reported",
    Exit.TARGET: "the target could not be used, or answered no request",
    Exit.INVALID: "the measurement is INVALID, or recorded rows were lost",
    Exit.FAILED: "an objective failed, or the target does not sustain the rate",
    Exit.INCONCLUSIVE: "inconclusive: too few data",
    Exit.OK: "success; DEGRADED runs also exit 0",
}


def exit_codes(*omitted: Exit, **texts: str) -> str:
    """Return the paragraph of a help; `texts`, by the codes' names in lower case, replace those of a run."""
    meanings = {code: texts.get(code.name.lower(), text) for code, text in MEANINGS.items()}
    lines = ["\b", "Exit codes. If several apply, the first in this list is used."]
    for code, text in meanings.items():
        if code not in omitted:
            lines.append(f"  {code:<3}  {text}")
    return "\n".join(lines)


RUN = f"""{exit_codes()}

\b
A scenario with a table [experiment] is an experiment: it makes several runs.
Today's load is the load in this scenario. For an experiment, two codes mean
something else:
  1    checkup: a problem was found, or an objective failed
       headroom: the target does not sustain today's or the required rate
       hedging: hedging does harm at today's load
       models: no model meets every objective
       curve: an objective failed at today's load, or at every listed load
       calibrate: the planned load is not VALID
  3    every run was INVALID
With --dry-run, the code describes the simulated endpoint, not the target.

\b
The key experiment.minutes of a scenario limits the time of the experiment.
Set the limit to five minutes with --set experiment.minutes=5.
After a rate limit of the target has rejected calls, the experiments headroom
and curve pause for up to a minute before each run. Shorten the pause with
--set experiment.headroom.rest_s=10 or --set experiment.curve.rest_s=10."""
REPORT = exit_codes()
COMPARE = exit_codes(
    Exit.TARGET,
    usage="wrong usage, or a folder without a run",
    interrupted="interrupted",
    invalid="the runs are not comparable, or one is INVALID",
    failed="B (with --baseline, the run) is worse by more than --threshold",
    ok="B (with --baseline, the run) is not worse",
)
BASELINE = exit_codes(
    *(Exit.INTERRUPTED, Exit.TARGET, Exit.FAILED, Exit.INCONCLUSIVE),
    usage="wrong usage, or a file that cannot be used",
    invalid="a run is INVALID, or not comparable with the baseline",
    ok="every run was added",
)
CALIBRATE = exit_codes(
    Exit.INCONCLUSIVE,
    usage="wrong usage, or a run failed",
    interrupted="interrupted; the answer uses the completed runs",
    target="the simulated endpoint could not be used",
    invalid="no load was VALID",
    failed="the load of --planned was not VALID",
    ok="the largest VALID load was found",
)
ENDPOINT = exit_codes(
    *(Exit.INTERRUPTED, Exit.TARGET, Exit.INVALID, Exit.FAILED, Exit.INCONCLUSIVE),
    usage="wrong usage, or the address cannot be used",
    ok="stopped by Ctrl-C or SIGTERM",
)
WORKER = exit_codes(
    *(Exit.FAILED, Exit.INCONCLUSIVE),
    interrupted="interrupted",
    target="no master answered, or the master refused this worker",
    invalid="the connection to the master was lost; recorded rows are kept",
    ok="the master ended the run",
)
CHECKUP = exit_codes(
    interrupted="interrupted; the answer uses the completed runs",
    target="the target could not be used",
    invalid="every run was INVALID",
    failed="a problem was found, or an objective failed",
    inconclusive="a probe has no valid run, or an objective is inconclusive",
    ok="every probe ran; no problem was found",
)


def out(text: str, *, remote: bool = False) -> Callable[[_Command], _Command]:
    """Return the option --out. With `remote` it may be a URL: the command gets a folder, whose files are copied there at its end.

    `text`: its help, without the default.
    """
    help_text = f"{text} (default: the current folder)."

    def folder(context: click.Context, _: click.Parameter, value: str) -> Path:
        if is_remote(value) and not remote:
            advice = "only run, checkup, calibrate and report write to object storage"
            raise UsageError(f"--out {value}: expected a folder: {advice}")
        return context.with_resource(
            staged(value, lambda text: screen.show(f"tailgauge: {text}", err=True))
        )

    return click.option(
        "--out", type=str, default=".", metavar="DIR", help=help_text, callback=folder
    )


class RunDir(click.Path):
    """A run folder; of one in object storage its copy."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Return the folder's path."""
        if is_remote(value):
            return local(value)
        return super().convert(value, param, ctx)


RUN_DIR = RunDir(path_type=Path)
MOST_NAMED = 5  # runs that a message lists


def named_run(run_dir: Path, out: Path, *, of_reports: bool = False) -> Path:
    """Return the run folder below runs/, here or in `out`, whose name `run_dir` begins or is a word of; a path as it is.

    `of_reports`: where no run is meant, the report folder of an experiment. UsageError where several are meant, or none.
    """
    text = str(run_dir)
    if run_dir.parent != Path() or refusal(run_dir) != MISSING:
        return run_dir
    # Reports only where no run has the name.
    for parent in ("runs", "reports"):
        folders = {}
        for path in (*(Path() / parent).glob("*"), *(out / parent).glob("*")):
            if path.is_dir() and is_named(path.name, text):
                folders[path.name] = path
        # A run whose name begins with the text goes before one that has it as a word.
        beginning_so = [name for name in folders if name.startswith(text)]
        names = sorted(beginning_so or folders)
        if text in folders:
            names = [text]
        if len(names) == 1:
            folder = folders[names[0]]
            if parent == "reports" and not of_reports:
                raise UsageError(f"{text}: {folder} has a report, but no run folder")
            return folder
        if names:
            ellipsis = ""
            if len(names) > MOST_NAMED:
                ellipsis = ", ..."
            listed = f"{', '.join(names[:MOST_NAMED])}{ellipsis}"
            raise UsageError(
                f"{text}: {len(names)} runs have this in their names: {listed}: give more of the name"
            )
    raise UsageError(f"{run_dir}: no such run folder: {_known_runs(out)}")


def is_named(run_id: str, text: str) -> bool:
    """Return whether a text means this run: its name begins with it, or has it as whole words, as `quickstart` or `0a1b`."""
    return run_id.startswith(text) or f"-{text}-" in f"-{run_id}-"


def _known_runs(out: Path) -> str:
    """Return where the runs are listed, and the newest of them."""
    for place in (out, Path()):
        folders = [*place.glob("runs/*"), *place.glob("reports/*")]
        newest = max((path.name for path in folders if path.is_dir()), default="")
        if newest:
            option = ""
            if place != Path():
                option = f" --out {shlex.quote(str(place))}"
            return f"`tailgauge runs{option}` lists the runs, the newest is {newest}"
    place_text = "here"
    if out != Path():
        place_text = f"in {out}"
    return f"there are none {place_text} yet: `tailgauge run quickstart` makes one"


def allow() -> Callable[[_Command], _Command]:
    """Return the repeatable option --allow."""
    text = "Let the runs differ in NAME, such as traffic.chat.hedge (repeatable)."
    return click.option("--allow", multiple=True, metavar="NAME", help=text)


def opens() -> Callable[[_Command], _Command]:
    """Return the option --open."""
    return click.option("--open", "opens", is_flag=True, help="Open the report in the browser.")


def as_json(output: str = "the result as one JSON object") -> Callable[[_Command], _Command]:
    """Return the option --json."""
    return click.option("--json", "as_json", is_flag=True, help=f"Print {output}.")


def objectives() -> Callable[[_Command], _Command]:
    """Return the repeatable option --slo."""
    text = "Add an objective, such as 'chat: ttft p95 < 800ms' (repeatable)."
    return click.option("--slo", multiple=True, metavar="TEXT", help=text)


def overrides(
    text: str = "Override a value of the scenario (repeatable).", key: str = "TABLE.KEY=VALUE"
) -> Callable[[_Command], _Command]:
    """Return the repeatable option --set."""
    return click.option("--set", "sets", multiple=True, metavar=key, help=text)


def plugins() -> Callable[[_Command], _Command]:
    """Return the repeatable option --plugin. It loads them at once: the tables that the command reads have their rows."""

    def load(_: click.Context, __: click.Parameter, plugins: Sequence[str]) -> None:
        if plugins:
            from tailgauge.plugins import plugin

            for name in plugins:
                plugin.load(name)

    option = partial(click.option, "--plugin", multiple=True, metavar="FILE|NAME")
    return option(callback=load, expose_value=False, help="Load a plugin (repeatable).")


class Commands(click.Group):
    """Help lists the commands in the order in which they are added."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - click's signature
        """Their names."""
        return list(self.commands)


class Positive(click.ParamType[float]):
    """A number above 0, at most a billion."""

    name = "number"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> float:
        """Parse the value."""
        try:
            number = self.number(str(value))
        except ValueError:
            number = -1.0
        if not 0 < number < 1e9:
            self.fail(
                f"expected {self.expected}, got {value!r}{self.meant(str(value))}", param, ctx
            )
        return number

    expected = "a number above 0"

    def meant(self, text: str) -> str:
        """Return the end of a message: what to write instead; empty where that is not known."""
        number = number_and_unit(text)
        if number is None:
            return ""
        value, unit = number
        if not 0 < value < 1e9 or unit not in {"", "/s", "rps", "qps", "usd"}:
            return ""
        return f": write {value:.10g}"

    def number(self, text: str) -> float:
        """Return the value of a text; ValueError for others."""
        return float(text)


class Duration(Positive):
    """Seconds, from a text such as `90`, `60s`, `5m` or `1h30m`."""

    name = "duration"
    expected = "a length of time above 0, for example 60s or 5m"

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Return how the help shows it."""
        return "TIME"

    def meant(self, text: str) -> str:
        """Return the end of a message: the same length as it is to be written."""
        number = number_and_unit(text)
        if number is None:
            return ""
        value, unit = number
        if unit not in SECONDS:
            return ""
        seconds = value * SECONDS[unit]
        if not 0 < seconds < 1e9:
            return ""
        return f": write {_length_text(seconds, has_unit=unit != '')}"

    def number(self, text: str) -> float:
        """Seconds of a text; ValueError for others."""
        parts = re.fullmatch(r"(?:(\d+)h)?(?:(\d+)m)?(?:(\d+(?:\.\d+)?)s)?", text)
        if parts is None or not text:
            return float(text)
        hours, minutes, seconds = parts.groups("0")
        return 3600 * float(hours) + 60 * float(minutes) + float(seconds)


class Age(Duration):
    """Seconds of a text with a unit: a number alone may be meant as hours or days."""

    expected = "a length of time with a unit, for example 24h or 30m"

    def meant(self, text: str) -> str:
        """Return the end of a message: the number with units."""
        if re.fullmatch(r"\d+(?:\.\d+)?", text):
            return f": write {text}h for hours, or {text}s for seconds"
        return super().meant(text)

    def number(self, text: str) -> float:
        """Seconds of a text; ValueError for others."""
        if not re.search("[a-z]", text):
            raise ValueError(text)
        return super().number(text)


def _length_text(seconds: float, *, has_unit: bool) -> str:
    """Return a length as `Duration` reads it: in hours or minutes where it is whole ones."""
    if has_unit and seconds % 3600 == 0:
        return f"{seconds / 3600:g}h"
    if has_unit and seconds % 60 == 0:
        return f"{seconds / 60:g}m"
    return f"{seconds:.10g}s"


class Whole(click.ParamType[int]):
    """A whole number within bounds, which the help does not repeat."""

    name = "whole number"

    def __init__(self, minimum: int = 1, maximum: int = 1_000_000_000) -> None:
        self.minimum = minimum
        self.maximum = maximum

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str:  # noqa: ARG002 - click's signature
        """Return how the help shows it."""
        return "N"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> int:
        """Parse the value."""
        text = str(value)
        is_whole = re.fullmatch(r"-?\d{1,20}", text) is not None
        if not is_whole or not self.minimum <= int(text) <= self.maximum:
            bounds = f"from {self.minimum:,} to {self.maximum:,}"
            self.fail(
                f"expected a whole number {bounds}, got {text[:80]!r}{self._meant(text)}",
                param,
                ctx,
            )
        return int(text)

    def _meant(self, text: str) -> str:
        """Return the end of a message: the number that a text such as `1,000` or `1k` means."""
        number = number_and_unit(text)
        if number is None:
            return ""
        value, unit = number
        if unit or not value.is_integer() or not self.minimum <= value <= self.maximum:
            return ""
        return f": write {value:.0f}"


class Size(Whole):
    """A number of tokens. A list or a range of them is no sweep."""

    def _meant(self, text: str) -> str:
        meant = super()._meant(text)
        if not re.fullmatch(r"\d+\s*(?:[,:;-]\s*\d+)+", text):
            return meant
        is_grouped = re.fullmatch(r"\d{1,3}(?:,\d{3})+", text) is not None
        number = ""
        if meant and is_grouped:
            number = f"{meant} for one number"
        return f"{number}; a list here is no sweep: give one size"


class Loads(click.ParamType[Any]):
    """One load, or several in ascending order: `8`, `2,4,8`."""

    name = "loads"

    def __init__(self, load: click.ParamType[Any]) -> None:
        self.load = load

    def get_metavar(self, param: click.Parameter, ctx: click.Context) -> str | None:
        """Return how the help shows it."""
        return self.load.get_metavar(param, ctx)

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        """Parse a load, or a tuple of them."""
        texts = str(value).split(",")
        is_grouped = any(re.fullmatch("0[0-9]{2}", text) for text in texts[1:])  # 1,000
        if len(texts) == 1 or is_grouped:
            return self.load.convert(value, param, ctx)
        if not all(text.strip() for text in texts):
            self.fail(f"expected loads such as 2,4,8, got {value!r}", param, ctx)
        loads = tuple(self.load.convert(text.strip(), param, ctx) for text in texts)
        if list(loads) != sorted(set(loads)):
            self.fail(f"expected ascending loads, each once, got {value!r}", param, ctx)
        return loads


class ScenarioName(click.ParamType[str]):
    """A scenario's file or name; the shell completes both."""

    name = "scenario"

    def shell_complete(self, _: click.Context, __: click.Parameter, incomplete: str) -> list[Any]:
        """Packaged scenarios that begin so; files where there is none."""
        from click.shell_completion import CompletionItem

        from tailgauge.scenario.packaged import names

        items = [CompletionItem(name) for name in names() if name.startswith(incomplete)]
        return [CompletionItem(incomplete, type="file"), *items]


CLOCK = click.Choice(("kernel", "user"))
SEED = Whole(0, 2**63 - 1)
FILE = click.Path(path_type=Path)
PEM = click.Path(dir_okay=False, path_type=Path)


CONCURRENCY = "arrival"  # beside a rate: MAX_CONCURRENCY
MAX_CONCURRENCY = "arrival.max_concurrency"


class Override(NamedTuple):
    """An option of `run` that sets a key of the scenario."""

    option: str
    key: str
    type: Any
    metavar: str | None
    help: str

    @property
    def parameter(self) -> str:
        """The name under which click passes its value."""
        return self.option.removeprefix("--").replace("-", "_")

    def value(self, option_value: Any) -> Any:
        """Return the value of the key."""
        if self.key == CONCURRENCY:
            return {"process": "closed", "closed": {"users": option_value, "think_s": 0}}
        return option_value


TRAFFIC = (
    Override("--target", "target.url", str, "URL", "Send the traffic to this URL."),
    Override("--model", "target.model", str, "NAME", "Request this model."),
    Override("--protocol", "target.protocol", str, "NAME", "Wire protocol: anthropic, openai or sse."),
    Override("--rate", "arrival.rate_per_s", Loads(Positive()), "PER_SECOND", "Mean arrivals per second, or a list such as 2,4,8."),
    Override("--concurrency", CONCURRENCY, Loads(Whole(1, 1_000_000)), None, "Keep N requests in flight; with --rate, at most N."),
    Override("--input-tokens", "traffic.*.prompt_tokens", Size(1, 10_000_000), None, "Prompt size in tokens, without the shared prefix."),
    Override("--output-tokens", "traffic.*.output_tokens", Size(1, 10_000_000), None, "Maximum size of an answer in tokens."),
)  # fmt: skip
MORE = (
    Override("--seed", "seed", SEED, None, "Random seed of arrivals, sizes and prompts."),
    Override("--clock", "clock", CLOCK, None, "Source of timestamps: kernel (default) or user space."),
    Override("--keep-answers", "keep_answers", Whole(1, 1000), None, "Keep the first N raw answers of each worker (in the run folder)."),
    Override("--max-requests", "guard.max_requests", Whole(), None, "Stop before exceeding N HTTP calls."),
    Override("--max-tokens", "guard.max_tokens", Whole(), None, "Stop before exceeding N tokens in total (input and output)."),
    Override("--max-cost", "guard.max_cost", Positive(), "AMOUNT", "Stop before exceeding this cost (in the currency of the price file)."),
)  # fmt: skip
OVERRIDES = TRAFFIC + MORE
# A checkup sets its own loads, relative to one rate.
_TODAYS_RATE = Override(
    "--rate",
    "arrival.rate_per_s",
    Positive(),
    "PER_SECOND",
    "Mean arrivals per second of your traffic today (default: the rate of SCENARIO).",
)
_NOT_OF_CHECKUP = {"--concurrency", "--keep-answers"}
OF_CHECKUP = tuple(
    _TODAYS_RATE if row.option == "--rate" else row
    for row in OVERRIDES
    if row.option not in _NOT_OF_CHECKUP
)
CALIBRATED = tuple(row for row in OVERRIDES if row.option in {"--output-tokens", "--clock"})


def scenario_options(table: Sequence[Override]) -> Callable[[_Command], _Command]:
    """Return the options of a table."""

    def add(command: _Command) -> _Command:
        for row in reversed(table):
            command = click.option(row.option, type=row.type, metavar=row.metavar, help=row.help)(
                command
            )
        return command

    return add
