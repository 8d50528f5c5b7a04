"""Prompts of one traffic table: words from a seed, lines of a file, blocks of a trace, shared prefixes."""

from tailgauge.prompts.maker import Maker
from tailgauge.prompts.words import prompt

__all__ = ["Maker", "prompt"]
