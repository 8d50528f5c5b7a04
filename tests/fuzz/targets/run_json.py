"""The record of a run: it is loaded, or refused in a sentence that names the folder.

Folders with other damages are those of analysis/reading/damages.py.
"""

from __future__ import annotations

import atexit
import shutil
import tempfile
from pathlib import Path

from run_folders import synthetic

from tailgauge.errors import RunDataError
from tailgauge.rows.schema import TABLES
from tailgauge_analysis.reading import run_record

ROOT = Path(tempfile.mkdtemp(prefix="tailgauge-fuzz-"))
atexit.register(shutil.rmtree, ROOT, ignore_errors=True)
FOLDER = synthetic.write(ROOT / "run", n=8, run_id="run")
RECORD = FOLDER / "run.json"
REGULAR = RECORD.read_bytes()


def corpus() -> list[bytes]:
    return [REGULAR, REGULAR.replace(b"complete", b"running"), b"{}"]


def check(data: bytes) -> None:
    RECORD.write_bytes(data)
    try:
        run_record.check(FOLDER, *TABLES)
        run, problems = run_record.read([FOLDER])
    except RunDataError as refusal:
        text = str(refusal)
        assert str(FOLDER) in text, text
        assert len(text) < 2000, text
        return
    assert isinstance(run["state"], str)
    assert all(str(problem.text) for problem in problems)
