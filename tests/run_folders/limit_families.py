"""The same limits at the same time, as eight families of headers tell them."""

from datetime import UTC, datetime

NOW = datetime(2026, 11, 28, 12, tzinfo=UTC)
EPOCH_S = int(NOW.timestamp())

# 900 requests a minute, 100 of them left, all back in 12 s; 50,000 tokens, 20,000 left, in 9 s.
FAMILIES = {
    "anthropic": {
        "anthropic-ratelimit-requests-limit": "900", "anthropic-ratelimit-requests-remaining": "100",
        "anthropic-ratelimit-requests-reset": "2026-11-28T12:00:12Z",
        "anthropic-ratelimit-tokens-limit": "50000", "anthropic-ratelimit-tokens-remaining": "20000",
        "anthropic-ratelimit-tokens-reset": "2026-11-28T12:00:09Z",
    },
    "openai": {
        "x-ratelimit-limit-requests": "900", "x-ratelimit-remaining-requests": "100", "x-ratelimit-reset-requests": "12s",
        "x-ratelimit-limit-tokens": "50000", "x-ratelimit-remaining-tokens": "20000", "x-ratelimit-reset-tokens": "8s1000ms",
    },
    "epoch seconds": {
        "x-ratelimit-limit-requests": "900", "x-ratelimit-remaining-requests": "100",
        "x-ratelimit-reset-requests": str(EPOCH_S + 12),
        "x-ratelimit-limit-tokens": "50000", "x-ratelimit-remaining-tokens": "20000",
        "x-ratelimit-reset-tokens": str(EPOCH_S + 9),
    },
    "epoch milliseconds": {
        "x-ratelimit-limit-requests": "900", "x-ratelimit-remaining-requests": "100",
        "x-ratelimit-reset-requests": str(1000 * (EPOCH_S + 12)),
        "x-ratelimit-limit-tokens": "50000", "x-ratelimit-remaining-tokens": "20000",
        "x-ratelimit-reset-tokens": str(1000 * (EPOCH_S + 9)),
    },
    "azure": {
        "x-ratelimit-limit-requests": "900", "x-ratelimit-remaining-requests": "100", "x-rate-limit-reset-requests": "12",
        "x-ratelimit-limit-tokens": "50000", "x-ratelimit-remaining-tokens": "20000", "x-rate-limit-reset-tokens": "9",
    },
    "mistral": {
        "x-ratelimit-limit-req-minute": "900", "x-ratelimit-remaining-req-minute": "100", "x-ratelimit-reset-req-minute": "12",
        "x-ratelimit-limit-tokens-minute": "50000", "x-ratelimit-remaining-tokens-minute": "20000",
        "x-ratelimit-reset-tokens-minute": "9", "x-ratelimit-tokens-query-cost": "100",
    },
    "litellm": {
        "llm_provider-anthropic-ratelimit-requests-limit": "900", "llm_provider-anthropic-ratelimit-requests-remaining": "100",
        "llm_provider-anthropic-ratelimit-requests-reset": "2026-11-28T12:00:12+00:00",
        "llm_provider-x-ratelimit-limit-tokens": "50000", "llm_provider-x-ratelimit-remaining-tokens": "20000",
        "llm_provider-x-ratelimit-reset-tokens": "0m9s",
    },
    "ietf": {
        "ratelimit-policy": '"requests";q=900;w=60, "tokens";q=50000;w=60',
        "ratelimit": '"requests";r=100;t=12, "tokens";r=20000;t=9',
    },
}  # fmt: skip
