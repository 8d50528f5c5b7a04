"""Checkup: up to five probes of an endpoint before launch, with the user's own traffic, and what to change."""
