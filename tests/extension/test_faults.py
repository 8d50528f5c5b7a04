"""A simulated fault is one row and one name; a behaviour is one file, its settings and the place that calls it."""

import pandas as pd
import pytest
from extension.scratch import TOOK_PLACE

pytestmark = pytest.mark.slow

FAULTS = "src/tailgauge/simulator/behaviours/faults.py"
SIMULATED = "src/tailgauge/scenario/simulated.py"
ENDPOINT, EXCHANGE = (
    f"src/tailgauge/simulator/core/{name}.py" for name in ("endpoint", "exchange")
)
SILENCE_S = 0.3
ROW = """    # The headers at once, then nothing for a while.
    "silent_start": lambda table: Fault(headers_at_once=True, delay_ns=_seconds_ns(table)),
"""
BEHAVIOUR = '''"""Prompts that are too long are refused."""

from tailgauge.scenario.simulated import SizesTable


class Sizes:
    """The sizes that an endpoint takes; without a limit, all."""

    def __init__(self, table: SizesTable) -> None:
        self._most = table.prompt_tokens

    def takes(self, prompt_tokens: int) -> bool:
        """Whether a prompt is short enough."""
        return self._most is None or prompt_tokens <= self._most
'''
SETTINGS = '''class SizesTable(Table):
    """The longest prompt; a longer one is refused with status 413."""

    prompt_tokens: Count | None = Field(None, description="tokens of the longest prompt")


'''
APPLIED_AT = """        endpoint = self.endpoint
        request = self.request
        limits = endpoint.limits
"""
APPLIED = """        if not endpoint.sizes.takes(request.input_tokens):
            raise Refused(413, "The prompt is too long")
"""
SCENARIO = """
description = "Short and long prompts"
[target]
model = "tiny"
[arrival]
process = "constant"
rate_per_s = 10.0
[stages]
duration_s = 3.0
warmup_s = 0.0
[traffic.short]
prompt_tokens = 60
output_tokens = 4
[traffic.long]
prompt_tokens = 2000
output_tokens = 4
[simulated]
ttft_ms = 20.0
[slo.complete]
metric = "complete"
min = 0.2
"""
REAL_AND_DRY = pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["real", "dry run"])


@pytest.fixture
def ran(scratch):
    """Run a scenario on the copy; a function from the name of a table to its rows, preflight left out."""

    def run(*options):
        ended = scratch.run("-m", "tailgauge", "run", *options, "--out", "out")
        assert ended.returncode in ({0, 5} if "--dry-run" in options else TOOK_PLACE), (
            ended.stdout + ended.stderr
        )
        (folder,) = scratch.root.glob("out/runs/*")

        def rows(table):
            parts = [pd.read_parquet(part) for part in folder.glob(f"{table}/*.parquet")]
            return pd.concat(parts).query("request_id >= 0")

        return rows

    return run


@REAL_AND_DRY
def test_a_fault_is_one_row_and_one_name(scratch, ran, options):
    scratch.insert(FAULTS, "FAULTS: Mapping[str, Callable[[FaultTable], Fault]] = {\n", ROW)
    scratch.insert(SIMULATED, "FaultKind = Literal[", '"silent_start", ')
    settings = {"kind": "silent_start", "share": 1, "seconds": SILENCE_S}
    planted = (f"--set=simulated.faults.planted.{key}={value}" for key, value in settings.items())
    rows = ran("streaming", *options, "--set=stages.duration_s=4", *planted)
    attempts, log = rows("attempts"), rows("target")

    assert len(attempts) > 5
    assert set(attempts["ended"]) == {"ok"}
    assert set(log["fault"]) == {"silent_start"}
    first_sent_at_ns = log["chunk_sent_at_ns"].str[0]
    assert (first_sent_at_ns - log["received_at_ns"] >= SILENCE_S * 1e9).all()
    assert (first_sent_at_ns > log["headers_at_ns"]).all()
    assert len(scratch.changed) <= 4


@REAL_AND_DRY
def test_a_behaviour_is_a_file_with_settings_and_the_places_that_call_it(scratch, ran, options):
    scratch.write("src/tailgauge/simulator/behaviours/sizes.py", BEHAVIOUR)
    scratch.insert(SIMULATED, '    """number of text blocks"""\n\n\n', SETTINGS)
    scratch.insert(
        SIMULATED,
        "    content: ContentTable = ContentTable()\n",
        "    sizes: SizesTable = SizesTable()\n",
    )
    metrics = "from tailgauge.simulator.core.metrics import Meters\n"
    scratch.insert(ENDPOINT, metrics, "from tailgauge.simulator.behaviours.sizes import Sizes\n")
    scratch.insert(
        ENDPOINT,
        "        self.billing = billing.Billing(table.billing)\n",
        "        self.sizes = Sizes(table.sizes)\n",
    )
    scratch.insert(EXCHANGE, APPLIED_AT, APPLIED)
    (scratch.root / "sizes.toml").write_text(SCENARIO, encoding="utf-8")
    rows = ran("sizes.toml", *options, "--set=simulated.sizes.prompt_tokens=500")
    attempts = rows("attempts")

    statuses = attempts.groupby("traffic")["status"].agg(set).to_dict()
    assert statuses == {"short": {200}, "long": {413}}
    assert len(scratch.changed) <= 4
