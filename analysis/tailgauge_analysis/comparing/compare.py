"""`tailgauge compare`: folders of runs in pairs in, B against A out.

Runs that are not comparable are not read: their differences are the answer. UsageError for wrong arguments, RunDataError
for a folder without a run.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

from tailgauge.errors import UsageError
from tailgauge_analysis.comparing.block import METRICS, Block, block, pair_of, primary
from tailgauge_analysis.comparing.comparability import differences, facts_of, refusals
from tailgauge_analysis.comparing.comparison import Comparison, comparison
from tailgauge_analysis.comparing.design import Design, design
from tailgauge_analysis.metrics.metrics import BY_NAME, UNIT
from tailgauge_analysis.reading import run_files, run_record
from tailgauge_analysis.text.json_values import Json

THRESHOLD = 0.05


def compare(
    folders: Sequence[Path],
    allow: Sequence[str] = (),
    threshold: float = THRESHOLD,
    metrics: Sequence[str] = (),
) -> Comparison:
    """Compare the runs A1 B1 A2 B2 ...; `threshold` is the smallest change to report, 0.05 for 5%."""
    metrics = metrics or METRICS
    for name in metrics:
        if name not in BY_NAME:
            raise UsageError(f"--metric {name}: no such metric; choose from {', '.join(BY_NAME)}")
        if BY_NAME[name].unit != UNIT:
            raise UsageError(f"--metric {name}: rates are not compared; use its inverse, tpot")

    def read() -> list[Block]:
        pairs = zip(folders[::2], folders[1::2], strict=True)
        return [one for a, b in pairs for one in pair_of(block(a, metrics), block(b, metrics))]

    return weigh(_records(folders), read, allow, threshold, metrics)


def weigh(
    records: Sequence[Json], read: Callable[[], Sequence[Block]], allow: Sequence[str], threshold: float,
    metrics: Sequence[str],
) -> Comparison:  # fmt: skip
    """The comparison of runs A1 B1 A2 B2 ... by their records; rows are read if these are comparable."""
    first = primary(records[0]["scenario"], metrics)
    facts = [facts_of(record) for record in records]
    found = differences(list(zip(facts[::2], facts[1::2], strict=True)), allow)
    refused = refusals(found)
    if refused:
        return comparison([], metrics, first, threshold, Design(refused, []), found)
    blocks = read()
    pairs = list(zip(blocks[::2], blocks[1::2], strict=True))
    return comparison(pairs, metrics, first, threshold, design(pairs), found)


def _records(folders: Sequence[Path]) -> list[Json]:
    """The record of each run; each run once."""
    if len(folders) < 2 or len(folders) % 2:
        raise UsageError(f"compare takes runs in pairs, as A B or A1 B1 A2 B2; {len(folders)} given")
    seen: dict[str, Path] = {}
    found = []
    for folder in folders:
        run_files.check(folder)
        run, _ = run_record.read([folder])
        if run["run_id"] in seen:
            both = f"{folder} and {seen[run['run_id']]}"
            raise UsageError(f"{both} are the same run, {run['run_id']}: give each run once")
        seen[run["run_id"]] = folder
        found.append(run)
    return found
