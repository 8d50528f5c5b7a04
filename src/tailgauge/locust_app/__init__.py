"""Hooks and start of Locust: the only folder, besides channel, that imports it."""
