"""Names of older schemas and their current names: the only table needed to load older run folders."""

from __future__ import annotations

from tailgauge_analysis.text.json_values import Json

NEW_SINCE = 5  # the schema version from which the names are those of today
# Keys of run.json and workers/<n>.json by their old name; the old name of each column that had another one.
KEYS = {"owner": "master", "virtual": "dry_run"}
COLUMNS = {
    "attempts": {"receive_lag_max_ns": "handover_max_ns"},
    "health": {
        "receive_lag_max_ns": "handover_max_ns",
        "receive_lag_p50_ns": "handover_p50_ns",
        "receive_lag_p99_ns": "handover_p99_ns",
    },
}


def renamed(tree: Json) -> Json:
    """The table of a JSON file, under the names of today; a worker's file repeats the run's in `run`."""
    now = {KEYS.get(key, key): value for key, value in tree.items()}
    if isinstance(now.get("run"), dict):
        now["run"] = {KEYS.get(key, key): value for key, value in now["run"].items()}
    return now
