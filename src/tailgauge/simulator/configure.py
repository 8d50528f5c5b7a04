"""From the scenario's table `[simulated]` to the endpoint's settings.

Rule: pure. The table has checked every value by itself; what only a whole engine can refuse is told as the user's
mistake, by its key.
"""

from __future__ import annotations

from dataclasses import replace
from fractions import Fraction
from typing import Any

from tailgauge.errors import ScenarioError
from tailgauge.scenario.simulated import FIXED, BillingTable, EngineTable, LimitsTable, Simulated
from tailgauge.simulator.billing import BillSettings
from tailgauge.simulator.content import ContentSettings
from tailgauge.simulator.engine.config import Drafting, EngineConfig, StepLaw
from tailgauge.simulator.engine.profiles import PROFILES
from tailgauge.simulator.faults import Fault, FaultSettings
from tailgauge.simulator.latency import Latency
from tailgauge.simulator.limits import Allowance, LimitSettings, ModelLimits
from tailgauge.simulator.prefix_cache import CacheSettings
from tailgauge.simulator.proxy import ProxySettings
from tailgauge.simulator.ramp import RampSettings
from tailgauge.simulator.settings import Settings
from tailgauge.simulator.stragglers import StragglerSettings

_LATENCY = (
    "ttft_ms", "ttft_sigma", "ttft_exponential", "chunk_gap_ms", "chunk_gap_sigma", "tokens_per_chunk",
)  # fmt: skip
_MINUTE_S = 60
_DRAFTS = {"draft_law": "law", "draft_tokens": "draft_tokens", "draft_accept": "accept"}


def settings(wanted: Simulated, seed: int) -> Settings:
    """The settings of an endpoint that listens in the clear and welcomes everyone."""
    cache = wanted.cache.model_dump()
    block_tokens = cache.pop("block_tokens")
    faults = tuple(Fault(**fault.model_dump()) for fault in wanted.faults.values())
    return Settings(
        Latency(seed=seed, **{name: getattr(wanted, name) for name in _LATENCY}),
        engine=None if wanted.profile == FIXED else _engine(wanted.profile, wanted.engine),
        limits=_limits(
            wanted.limits, PROFILES[wanted.profile].refill_s if wanted.profile in PROFILES else _MINUTE_S
        ),
        cache=CacheSettings(seed=seed, **cache),
        cache_block_tokens=block_tokens,
        stragglers=StragglerSettings(seed=seed, **wanted.stragglers.model_dump()),
        faults=FaultSettings(faults, wanted.ping_every_s, seed),
        proxy=ProxySettings(**wanted.proxy.model_dump()),
        billing=_billing(wanted.billing),
        content=ContentSettings(**wanted.content.model_dump()),
    )


def _engine(profile: str, table: EngineTable) -> EngineConfig:
    """The profile's engine with the given values in the place of its own."""
    engine = PROFILES[profile].engine
    given: dict[str, Any] = {name: value for name, value in table.model_dump().items() if value is not None}
    drafts = {name: given.pop(key) for key, name in _DRAFTS.items() if key in given}
    if drafts:
        given["drafting"] = Drafting(**drafts)
    if "step_ms" in given:
        assert isinstance(engine.law, StepLaw)
        given["law"] = replace(engine.law, step_ms=given.pop("step_ms"))
    if given.get("cancel_mode") == "after_ms":
        given["cancel_mode"] = "after_ns"
    if "cancel_after_ms" in given:
        given["cancel_after_ns"] = round(given.pop("cancel_after_ms") * 1e6)
    try:
        return replace(engine, **given)
    except ValueError as error:
        raise ScenarioError(f"simulated.engine with the profile {profile}: {error}") from None


def _limits(table: LimitsTable, refill_s: int) -> LimitSettings:
    """One class for all models, if there is any limit."""
    requests = _allowance(table.rpm, table.burst, refill_s)
    inputs = _allowance(table.itpm, table.itpm_burst, refill_s)
    outputs = _allowance(table.otpm, table.otpm_burst, refill_s)
    ramp = (
        RampSettings(table.ramp_growth, table.ramp_window_s, table.ramp_floor) if table.ramp_growth else None
    )
    purse = None if table.spend is None else _exact(table.spend)
    if (requests, inputs, outputs, ramp) == (None, None, None, None):
        return LimitSettings((), purse)
    one = ModelLimits(
        requests=requests, input_tokens=inputs, output_tokens=outputs,
        output_mode=table.otpm_mode, reads_count=table.reads_count, ramp=ramp,
    )  # fmt: skip
    return LimitSettings((one,), purse)


def _allowance(per_minute: int | None, burst: int | None, refill_s: int) -> Allowance | None:
    """Without a burst of its own the bucket holds what comes back in `refill_s`."""
    if per_minute is None:
        return None
    if burst is None and refill_s != _MINUTE_S:
        burst = max(1, per_minute * refill_s // _MINUTE_S)
    return Allowance(per_minute, burst)


def _billing(table: BillingTable) -> BillSettings:
    rates = {name: _exact(getattr(table, name)) for name in ("read", "write_5m", "write_1h", "output")}
    return BillSettings(table.bill_cancelled, **rates)


def _exact(number: float) -> Fraction:
    """The number as it was written: 0.1 is a tenth."""
    return Fraction(repr(number))
