"""Continuous batching once more, written plainly: one step after the other, every token in Python.

An independent oracle for the engine's planned steps. It knows no plans, no ledger and no numpy; where the two
disagree one of them is wrong. Arrivals are (time in ns, prompt, output), in order; no overhead, no drafting, growth of
memory by blocks.
"""

from math import ceil


def chunk_times_ns(config, arrivals):
    """The times of each call's tokens."""
    calls = [
        {"at": at, "prompt": p, "output": o, "times": [], "left": None, "blocks": 0}
        for at, p, o in arrivals
    ]
    coming, waiting, running = list(calls), [], []
    now = 0
    while coming or waiting or running:
        if not waiting and not running:
            now = max(now, coming[0]["at"])
        while coming and coming[0]["at"] <= now:
            waiting.append(coming.pop(0))
        if not _preempt(config, running, waiting):
            _admit(config, running, waiting)
        prefilling = [c for c in running if c["left"]]
        decoding = [c for c in running if c["left"] == 0]
        chunks = _chunks(config, prefilling, len(decoding))
        now = _step(config, now, decoding, chunks)
        running[:] = [c for c in running if len(c["times"]) < c["output"]]
        # Who arrives while a step runs, its last instant excepted, is looked at when it ends.
    return [c["times"] for c in calls]


def _context(call):
    return call["prompt"] + len(call["times"])


def _blocks(config, tokens):
    return ceil(tokens / config.block_tokens)


def _preempt(config, running, waiting):
    preempted = False
    while config.kv_blocks is not None:
        decoding = [c for c in running if c["left"] == 0]
        need = sum(_blocks(config, _context(c) + 1) for c in decoding)
        need += sum(c["blocks"] for c in running if c["left"])
        if need <= config.kv_blocks:
            break
        call = running.pop()
        call["left"] = None
        waiting.insert(0, call)
        preempted = True
    return preempted


def _admit(config, running, waiting):
    while waiting and len(running) < config.slots:
        call = waiting[0]
        blocks = _blocks(config, _context(call) + 1)
        if config.kv_blocks is not None:
            held = sum(_blocks(config, _context(c) + 1) for c in running if c["left"] == 0)
            held += sum(c["blocks"] for c in running if c["left"])
            if held + blocks > config.kv_blocks:
                return
        call["left"], call["blocks"] = _context(call), blocks
        running.append(waiting.pop(0))


def _chunks(config, prefilling, decoding):
    budget = config.token_budget - decoding
    chunks = []
    for call in prefilling:
        tokens = min(budget, call["left"])
        if tokens <= 0:
            break
        chunks.append((call, tokens))
        budget -= tokens
    return chunks


def _step(config, now, decoding, chunks):
    timing, prefill = config.timing, config.timing.prefill
    tokens = sum(n for _, n in chunks)
    knee = min(tokens, prefill.knee_tokens)
    ms = timing.step_ms + timing.sequence_ms * len(decoding)
    if tokens:
        ms += (
            prefill.base_ms
            + prefill.ms_per_token * knee
            + prefill.ms_per_token_beyond * (tokens - knee)
        )
    end = now + round(ms * 1e6 + timing.context_ms * 1e3 * sum(map(_context, decoding)))
    for call in decoding:
        call["times"].append(end)
    for call, n in chunks:
        call["left"] -= n
        if not call["left"]:
            call["times"].append(end)
    return end
