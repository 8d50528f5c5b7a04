"""Checkup: five probes of an endpoint before launch, and what to change, the largest gain first."""
