"""Prompts out of a seeded word list: made ahead of need, never on the hot path.

Rule: a prompt depends on the run's seed and its request's id only, so any worker makes the same one. It opens with
its own random words: two requests share no prefix, so no cache helps by accident.
"""

from __future__ import annotations

import random

# Common words of four to seven letters: about one token each for the usual vocabularies.
WORDS = tuple(
    """
    river stone winter garden window paper bridge market silver forest candle morning harbor engine
    planet doctor island letter mirror museum number orange pencil pocket rabbit school season
    shadow signal simple spring street summer ticket travel valley village weather wonder yellow
    animal answer autumn basket bottle branch bright butter camera castle change circle coffee
    corner cotton county couple danger desert dinner dragon effort family farmer figure finger
    flight flower friend future gentle golden ground guitar hammer handle height hidden hollow
    honest humble hunter jacket jungle kitchen ladder laptop leader leather legend lemon listen
    little lovely magnet manner marble meadow memory middle minute modern moment motion mountain
    narrow nation native nature needle notice object ocean office option origin palace parent
    patient pattern people picture pillow pirate player pleasant
    """.split()  # noqa: SIM905 - words read best as words
)


def prompt(seed: int, request_id: int, tokens: int) -> str:
    """About `tokens` tokens of words."""
    rng = random.Random(f"{seed}/{request_id}")
    return " ".join(rng.choices(WORDS, k=tokens))
