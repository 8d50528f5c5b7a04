"""The load curve: latency and throughput at each load, and the largest load at which the objectives hold."""
