"""Hedging: latency gain and cost of hedges."""
