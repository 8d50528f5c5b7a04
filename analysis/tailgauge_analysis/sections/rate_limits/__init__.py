"""Rate limits: which calls got a 429, by which limit, how much capacity it has, and what retries did about it."""
