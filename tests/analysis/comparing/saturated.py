"""One replica that completes 15.5 requests/s and finishes what was cancelled: sustained without hedges, not with them."""

from __future__ import annotations

OFF, ON = "policy = 'off'", "policy = 'fixed'\ndelay_ms = 110\nbudget_share = 0.7"


def scenario(
    seed: int, rate_per_s: float, duration_s: float, hedges: dict[str, str], more: str = ""
) -> str:
    """Its text, with a traffic table for each of `hedges`."""
    tables = "".join(
        f"[traffic.{name}]\npattern = 'hedged'\nprompt_tokens = 200\noutput_tokens = 20\n[traffic.{name}.hedge]\n{hedge}\n"
        for name, hedge in hedges.items()
    )
    return (
        f"seed = {seed}\n[target]\nurl = 'simulated'\n[arrival]\nrate_per_s = {rate_per_s}\n"
        f"[stages]\nduration_s = {duration_s}\nwarmup_s = 10\n{tables}{more}"
        "[simulated]\nprofile = 'tiny'\n[simulated.engine]\nslots = 1\nstep_ms = 3.0\noverhead_ms = 110\n"
        "overhead_sigma = 1.0\ncancel_mode = 'never'\n"
    )


def in_blocks(block_s: float, washed: float = 1 / 6) -> str:
    """Its crossover of the tables `plain` and `hedged`; `washed`: share of a block that does not count."""
    return f"[crossover]\na = 'plain'\nb = 'hedged'\nblock_s = {block_s}\nwashout_s = {block_s * washed}\n"
