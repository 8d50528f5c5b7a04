"""Prompts of one traffic table: words from a seed, shared prefixes, and the maker of both."""

from tailgauge.prompts.maker import Maker
from tailgauge.prompts.words import prompt

__all__ = ["Maker", "prompt"]
