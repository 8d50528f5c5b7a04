"""The committed example of a report: a dry run that has every section. `make example` writes reports/example again.

    .venv/bin/python docs/example.py [FOLDER]

The command in the report is the one that was run; names of the machine are replaced. Without FOLDER the picture in README is
taken again too, where Chromium is installed.
"""

from __future__ import annotations

import json
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parents[1]
EXAMPLE = ROOT / "reports" / "example"
FILES = ("report.html", "report.md", "report.json")
SETTINGS = (
    "traffic.chat.pattern=hedged", "traffic.chat.hedge.policy=fixed", "traffic.chat.hedge.delay_ms=330",
    "traffic.chat.retry.policy=polite", "traffic.questions.retry.policy=polite", "traffic.research.retry.policy=polite",
    "simulated.limits.rpm=900", "simulated.limits.burst=15",
    "slo.ttft_p95.metric=ttft_sched", "slo.ttft_p95.quantile=0.95", "slo.ttft_p95.max_ms=500",
)  # fmt: skip
COMMAND = (
    "run", "mix", "--dry-run", "--seed=1", "--duration=300", *(f"--set={text}" for text in SETTINGS)
)  # fmt: skip
PICTURE = ROOT / "docs" / "images" / "report.png"
BROWSER = "chromium"
SIZE = "1440,900"
MACHINE = {"host": "example", "pid": 1, "kernel": "example", "boot_id": "example"}


def make(out: Path) -> None:
    """Run the command, blank the machine in run.json, report, and put the files into `out`."""
    tailgauge = str(Path(sys.executable).with_name("tailgauge"))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        subprocess.run([tailgauge, *COMMAND, "--out", name], check=False, stdout=subprocess.DEVNULL)
        (run,) = folder.glob("runs/*")
        _blank(run / "run.json")
        shutil.rmtree(folder / "reports", ignore_errors=True)
        subprocess.run(
            [tailgauge, "report", str(run), "--out", name], check=False, stdout=subprocess.DEVNULL
        )
        (report,) = folder.glob("reports/*")
        out.mkdir(parents=True, exist_ok=True)
        for file in FILES:
            shutil.copyfile(report / file, out / file)


def _blank(path: Path) -> None:
    """Replace names of the machine by `example`."""
    run = json.loads(path.read_text(encoding="utf-8"))
    for facts in (run["master"], run["versions"], *run["workers"]):
        facts.update({key: value for key, value in MACHINE.items() if key in facts})
    path.write_text(json.dumps(run), encoding="utf-8")


def take_picture(browser: str) -> None:
    """Run `quickstart` in real time and write the first screen of its page to docs/images/report.png."""
    tailgauge = str(Path(sys.executable).with_name("tailgauge"))
    with tempfile.TemporaryDirectory() as name:
        run = [tailgauge, "run", "quickstart", "--out", name]
        subprocess.run(run, check=True, stdout=subprocess.DEVNULL)
        (page,) = Path(name).glob("reports/*/report.html")
        options = ["--headless", "--no-sandbox", "--hide-scrollbars", "--virtual-time-budget=8000"]
        picture = [f"--window-size={SIZE}", f"--screenshot={PICTURE}", page.as_uri()]
        subprocess.run([browser, *options, *picture], check=True, stderr=subprocess.DEVNULL)


if __name__ == "__main__":
    make(Path(sys.argv[1]) if len(sys.argv) > 1 else EXAMPLE)
    browser = shutil.which(BROWSER)
    if browser and len(sys.argv) == 1:
        take_picture(browser)
