"""Tailgauge: distributed load testing for streaming LLM endpoints."""

__version__ = "0.1.0"
