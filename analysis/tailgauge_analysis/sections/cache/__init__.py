"""What the prompt cache did: shares, misses by cause, expiry, the effect on TTFT, and cost."""
