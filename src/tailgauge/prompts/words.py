"""Text out of a seeded word list; salts that make prompts unlike; how many tokens each word has at a target.

A text depends on the run's seed and its use only (an id, or a purpose), so any worker makes the same one. A shorter text
for the same use is the beginning of a longer one. Which texts make up a prompt is in `maker` and `source`.
"""

from __future__ import annotations

from collections.abc import Sequence
from hashlib import sha256, shake_128

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


class Vocabulary:
    """The words that texts are made of, and how many of them a token is."""

    def __init__(self, per_token: float = 1.0, words: Sequence[str] = WORDS) -> None:
        self._per_token = per_token
        self._by_byte = [words[byte % len(words)] for byte in range(256)]

    def __call__(self, tokens: int) -> int:
        """Words for so many tokens, at least one."""
        return max(1, round(tokens * self._per_token))

    def text(self, seed: int, use: str, count: int) -> str:
        """`count` words, one for each byte of a hash. A request's use is its id; other uses begin with a letter."""
        return " ".join(
            [self._by_byte[byte] for byte in shake_128(f"{seed}/{use}".encode()).digest(count)]
        )


text = Vocabulary().text
# What a tokenizer is asked for: behind one that has no space before it, every word twice.
COUNTED = " ".join([WORDS[0], *(f"{word} {word}" for word in WORDS)])


def token_counts(tokens: Sequence[int]) -> dict[str, int]:
    """Tokens of each word behind a space, out of those of COUNTED; empty if they are not seen twice.

    Every word stands there twice, so its tokens do; read from the end.
    """
    counts: dict[str, int] = {}
    end = len(tokens)
    for word in reversed(WORDS):
        # The largest size at which both are alike: a word may end with two equal tokens.
        size = min(len(word) + 1, end // 2)
        while size and tokens[end - size : end] != tokens[end - 2 * size : end - size]:
            size -= 1
        if not size:
            return {}
        counts[word] = size
        end -= 2 * size
    return counts


def prompt(seed: int, request_id: int, tokens: int) -> str:
    """About `tokens` tokens of words."""
    return text(seed, str(request_id), tokens)


def salt(seed: int, use: str) -> str:
    """Twelve letters that no other use has."""
    digest = sha256(f"{seed}/salt/{use}".encode()).hexdigest()[:12]
    return "".join(chr(ord("a") + int(digit, 16)) for digit in digest)


def run_salt(run_id: str) -> str:
    """Twelve letters that no other run has."""
    return salt(0, f"run/{run_id}")
