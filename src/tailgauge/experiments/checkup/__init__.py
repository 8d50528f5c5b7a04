"""Checkup: five probes of an endpoint before a launch, and what to change, the largest gain first."""
