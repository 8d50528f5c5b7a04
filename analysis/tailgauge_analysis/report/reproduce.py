"""The command that runs the same traffic again.

Rule: from run.json alone: the scenario's file, what the command line changed, the workers on the master's machine. What
is not known is not made up: without the file's name there is no command.
"""

from __future__ import annotations

import shlex

from tailgauge_analysis.text.formatting import plain, plural
from tailgauge_analysis.text.json_values import Json


def command(run: Json) -> str | None:
    """The command line, quoted for a shell; None where the run does not name its scenario."""
    if not run["scenario_file"]:
        return None
    words = ["tailgauge", "run", run["scenario_file"]]
    local = len(run["workers"]) - elsewhere(run)
    if run["virtual"]:
        words.append("--virtual")
    elif local > 1:
        words += ["--workers", str(local)]
    words += [word for text in run["overrides"] for word in ("--set", text)]
    return shlex.join(plain(word, 500) for word in words)


def elsewhere(run: Json) -> int:
    """Workers on other machines than the master's."""
    host = run["master"].get("host")
    return sum(w["host"] != host for w in run["workers"] if host and w["host"])


def besides(run: Json) -> str:
    """What the command line alone does not say, in a sentence or two."""
    said = "The file is the scenario as it was; what it said, every default written out, stands below."
    away = elsewhere(run)
    if away:
        said += f" {plural(away, 'worker')} ran on other machines: start as many there with `tailgauge worker --master HOST:PORT`."
    if not run["target"].get("simulated") and not run["virtual"]:
        said += " The target is asked again, and may answer otherwise."
    return said
