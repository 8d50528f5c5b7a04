"""Output tokens that were never streamed, and that nobody declared: reasoning that the usage counts without naming it.

An answer with more tokens than chunks either has several tokens per chunk, which leaves its TPOT alone, or tokens that were made
before its first content, which makes TPOT too low. Four signs tell the two apart, all relative to what the same run shows:

- the wait for the first content against the tokens beyond the chunks: a slope of about the pace proves hidden tokens, whatever
  their number, unless the characters show that these tokens have text;
- characters: hidden tokens have none, so that an answer has fewer of them per token than others of its traffic;
- the wait against the tokens that the characters do not account for, or against all;
- output against what was visible: tokens that are hidden from every answer alike leave an offset.

Without hidden tokens the wait does not depend on the length of the answer beyond what its prompt explains, and characters and
chunks are proportional to its tokens. All are shown only where lengths vary; where they do not, the answer is inconclusive.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd

from tailgauge_analysis.stats.quantiles import Floats, Mask

HIDDEN = "hidden"
AMBIGUOUS = "ambiguous"

COALESCED = (
    1.2  # tokens per chunk, and tokens per visible token, up to which TPOT is taken as it is
)
NOTICEABLE = 1.05  # tokens per chunk, above which an answer has tokens beyond its chunks
SPARE_TOKENS = 2  # end marks count as tokens and are not streamed
FEWEST = 20  # answers of a traffic table on which a slope rests
FEWEST_CLEAR = 10  # answers with a chunk for each token that show how many characters a token has
ERRORS = 3.0  # standard errors below a slope that shows hidden tokens
ERRORS_NEAR = 2.0  # standard errors around a slope that may equal another value
NEAR = 0.1  # of the pace: a slope may equal the pace within this
FASTEST = 1.5  # of the pace: a larger slope is no pace, however uncertain
TEXT = 0.5  # of the characters of a token: tokens beyond the chunks that have as many were streamed
# Above a slope that excludes more than 1 - 1 / COALESCED of them, if its error is no larger than what it must exclude: two
# fifths of the tokens would have to be off by 3 standard errors.
ERRORS_ABOVE = 1.0
GROWTH = 0.3  # of the pace: a wait that grows by more for each token that seems hidden
FOUND = 0.1  # of the pace: a wait that grows by more for each output token
CHARS_LEAST = 1.0  # per token, in any script whose tokens are whole characters
REFERENCE = 0.75  # quantile of the characters per token, where no answer has a chunk for each token


@dataclass(frozen=True, slots=True, kw_only=True)
class Answers:
    """Answers of one traffic table by one model; times in ns."""

    tokens: Floats
    chunks: Floats
    chars: Floats
    wait: Floats
    span: Floats
    prompt: Floats
    streamed: Floats
    """chunks, the first one counted by its characters: it may hold what a gateway collected"""

    def only(self, mask: Mask) -> Answers:
        """Return some of them."""
        return Answers(
            tokens=self.tokens[mask],
            chunks=self.chunks[mask],
            chars=self.chars[mask],
            wait=self.wait[mask],
            span=self.span[mask],
            prompt=self.prompt[mask],
            streamed=self.streamed[mask],
        )

    def __len__(self) -> int:
        return len(self.tokens)

    @property
    def excess(self) -> Floats:
        """Tokens beyond the chunks."""
        return self.tokens - self.streamed

    @property
    def has_excess(self) -> Mask:
        """Which have noticeably more tokens than chunks."""
        return (self.tokens > NOTICEABLE * self.streamed) & (self.excess > SPARE_TOKENS)

    @property
    def is_coalesced(self) -> Mask:
        """Which have so many more tokens than chunks that TPOT depends on what these are."""
        extra = self.tokens - self.chunks
        return (self.tokens > COALESCED * self.chunks) & (extra > SPARE_TOKENS)

    @property
    def tpot(self) -> float:
        """The pace by the token counts, ns."""
        return float(self.span.sum() / (self.tokens - 1).sum())

    @property
    def chunk_pace(self) -> float:
        """The pace by the chunks, ns: that of the visible tokens is no slower."""
        return float(self.span.sum() / (self.chunks - 1).sum())

    @property
    def of_prompt(self) -> Floats:
        """Columns that explain a wait by its prompt, whose cost need not be linear."""
        scaled = self.prompt / max(1.0, float(self.prompt.max()))
        return np.column_stack([np.ones(len(self)), scaled, scaled**2, scaled**3])


@dataclass(frozen=True, slots=True)
class Slope:
    """A coefficient of a least-squares fit with its standard error, robust against unequal variances (HC3)."""

    value: float
    error: float

    @property
    def low(self) -> float:
        """The lower bound of proof."""
        return self.value - ERRORS * self.error

    @property
    def high(self) -> float:
        """The upper bound."""
        return self.value + ERRORS_ABOVE * self.error

    def may_reach(self, value: float) -> bool:
        """Return whether it may be as large as this."""
        return self.value + ERRORS_NEAR * self.error >= value

    def may_fall_to(self, value: float) -> bool:
        """Return whether it may be as small as this."""
        return self.value - ERRORS_NEAR * self.error <= value


def judge(requests: pd.DataFrame, chars: Floats, judged: Mask) -> pd.Series[str]:
    """Return HIDDEN, AMBIGUOUS or "" for each answer; only those `judged` are looked at."""
    verdicts = pd.Series("", requests.index, dtype=object)
    rows = requests[judged]
    table = pd.DataFrame(
        {
            "tokens": rows["pace_tokens"].astype(np.float64),
            "chunks": rows["pace_chunks"].astype(np.float64),
            "chars": chars[judged].astype(np.float64),
            "wait": rows["pace_from_ns"] - rows["sent_at_ns"],
            "span": rows["last_content_at_ns"] - rows["pace_from_ns"],
            "prompt": rows["input_tokens"].fillna(rows["asked_prompt_tokens"]).astype(np.float64),
        }
    )
    by_text = (table["chunks"] - 1) / (1 - rows["first_share"].clip(upper=0.99))
    table["streamed"] = np.clip(
        by_text, table["chunks"], np.maximum(table["tokens"], table["chunks"])
    )
    table = table[
        (table["chars"] > 0) & (table["chunks"] >= 2) & (table["wait"] > 0) & (table["span"] > 0)
    ]
    keys = [rows.loc[table.index, "traffic"], rows.loc[table.index, "model"].fillna("")]
    for _, group in table.groupby(keys, observed=True):
        columns = {str(name): group[name].to_numpy(np.float64) for name in table}
        answers = Answers(**columns)
        if answers.has_excess.any() or answers.is_coalesced.any():
            verdicts.loc[group.index] = _judge_group(answers)
    return verdicts


def _judge_group(answers: Answers) -> Floats:
    """Return HIDDEN, AMBIGUOUS or "" for each answer of one traffic table by one model.

    HIDDEN: its usage counts tokens that were never streamed. Only answers with many more tokens than chunks are in doubt
    (`is_coalesced`): they have several tokens per chunk, or hidden ones.
    """
    verdicts = np.full(len(answers), "", object)
    if _is_proven_by_wait(answers):
        verdicts[answers.has_excess] = HIDDEN
        return verdicts
    coalesced = answers.is_coalesced
    if not coalesced.any():
        return verdicts
    # Answers with a chunk for each token show how many characters a token has; without enough of them it is a guess.
    has_chunk_per_token = ~answers.has_excess
    has_reference = int(has_chunk_per_token.sum()) >= FEWEST_CLEAR
    chars_per_token = _chars_per_token(answers, has_reference=has_reference)
    visible = answers.chars / chars_per_token
    seems_hidden = coalesced & (answers.tokens > COALESCED * visible)
    if seems_hidden.any() and _wait_grows(answers, visible):
        # Where others have a chunk for each token, several tokens per chunk are no coalescing.
        verdicts[coalesced] = HIDDEN if has_reference else AMBIGUOUS
        verdicts[seems_hidden] = HIDDEN
    elif has_reference:
        # The characters account for the tokens of all of them together, or the run does not tell.
        total = answers.tokens[coalesced].sum()
        is_text = total <= COALESCED * visible[coalesced].sum()
        verdicts[coalesced] = "" if is_text else AMBIGUOUS
    else:
        verdicts[coalesced] = _judge_by_length(answers.only(answers.has_excess | coalesced))
    # No text has so few characters per token.
    is_ambiguous = verdicts == AMBIGUOUS
    few_chars = answers.chars < CHARS_LEAST * answers.tokens
    verdicts[is_ambiguous & few_chars] = HIDDEN
    return verdicts


def _is_proven_by_wait(answers: Answers) -> bool:
    """Return whether the wait grows by about the pace for each token beyond the chunks.

    Among answers of equally many chunks that is no matter of what they are about. Where tokens and chunks are too nearly
    proportional for that, their prompts alone are held.
    """
    if len(answers) < FEWEST or _is_text(answers):
        return False
    same_chunks = _slope(answers.wait, answers.excess, answers.of_prompt, answers.streamed)
    if same_chunks is not None:
        if _is_pace(same_chunks, answers):
            return True
        if not same_chunks.may_reach((1 - NEAR) * answers.tpot):
            return False
    growth = _slope(answers.wait, answers.excess, answers.of_prompt)
    return growth is not None and _is_pace(growth, answers)


def _is_pace(growth: Slope, answers: Answers) -> bool:
    """Return whether a wait grows, and by the pace: no less than by the token counts, no more than by the chunks."""
    is_near = growth.may_reach((1 - NEAR) * answers.tpot)
    is_near &= growth.may_fall_to((1 + NEAR) * answers.chunk_pace)
    is_near &= growth.value <= FASTEST * answers.chunk_pace
    return growth.low > GROWTH * answers.tpot and is_near


def _is_text(answers: Answers) -> bool:
    """Return whether the characters grow with the tokens beyond the chunks, as they do where chunks were joined."""
    chunks = answers.streamed
    text = _slope(answers.chars, answers.excess, chunks, has_offset=False)
    if text is None:
        return False
    per_chunk = float((answers.chars - text.value * answers.excess).sum() / chunks.sum())
    return not text.may_fall_to(0.0) and text.value > TEXT * per_chunk


def _chars_per_token(answers: Answers, *, has_reference: bool) -> float:
    """Return the characters of a token: of answers with a chunk for each, or else of those that have many."""
    if has_reference:
        clear = ~answers.has_excess
        return float(answers.chars[clear].sum() / answers.tokens[clear].sum())
    return float(np.quantile(answers.chars / answers.tokens, REFERENCE))


def _wait_grows(answers: Answers, visible: Floats) -> bool:
    """Return whether answers wait longer for their first content the more of their tokens seem hidden."""
    if len(answers) < FEWEST:
        return False
    paces = answers.span / np.maximum(visible - 1, 1)
    excess = answers.tokens - visible
    growth = _slope(answers.wait, excess, answers.tokens, answers.of_prompt)
    return growth is not None and growth.low > GROWTH * float(np.median(paces))


def _judge_by_length(answers: Answers) -> str:
    """Judge answers that are alike by how the wait, the characters and the chunks depend on the number of tokens.

    If text had 1 / COALESCED of the tokens, its characters per token would be COALESCED times what they seem, and the wait
    would grow by the pace for each of the others. Hidden tokens are excluded where it grows by less.
    """
    if len(answers) < FEWEST:
        return AMBIGUOUS
    wait = _slope(answers.wait, answers.tokens, answers.of_prompt)
    if wait is None:
        return AMBIGUOUS
    if wait.low > FOUND * answers.tpot:
        return HIDDEN
    limit = COALESCED * answers.tpot * (1 - _elasticity(answers) / COALESCED)
    is_excluded = wait.high < limit and wait.error < limit
    return "" if is_excluded else AMBIGUOUS


def _elasticity(answers: Answers) -> float:
    """Return by how much, relative to its mean, what is visible grows with the tokens, at most; 1 if proportional."""
    bounds = []
    for visible in (answers.chars, answers.chunks):
        growth = _slope(visible, answers.tokens)
        if growth is None:
            continue
        scale = float(answers.tokens.mean() / visible.mean())
        if growth.error * scale < COALESCED - 1:
            bounds.append(growth.high * scale)
    return max(1.0, min(bounds, default=np.inf))


def _slope(
    values: Floats, factor: Floats, *controls: Floats, has_offset: bool = True
) -> Slope | None:
    """Return the coefficient of `factor` in a least-squares fit of `values` with `controls`, and its standard error (HC3).

    None where the controls explain all of the factor, or where there are no more values than coefficients. A control is a
    column, or several; `has_offset`: with a constant.
    """
    columns = list(controls)
    if has_offset:
        columns.insert(0, np.ones(len(values)))
    regressors = np.column_stack(columns)
    regressors = regressors / np.maximum(np.abs(regressors).max(axis=0), 1e-300)
    # An orthonormal basis of the controls; columns that follow from the others are dropped.
    basis, sizes, _ = np.linalg.svd(regressors, full_matrices=False)
    basis = basis[:, sizes > 1e-9 * sizes[0]]
    # What the controls do not explain of the factor: its coefficient is that of this part alone.
    residual = factor - basis @ (basis.T @ factor)
    squares = float(np.square(residual).sum())
    rank = basis.shape[1] + 1
    if squares <= 1e-6 * float(np.square(factor).sum()) or len(values) <= rank + 1:
        return None
    value = float((residual * values).sum()) / squares
    errors = values - basis @ (basis.T @ values) - value * residual
    leverage = np.square(basis).sum(axis=1) + np.square(residual) / squares
    errors = errors / np.maximum(1 - leverage, 1e-3)
    return Slope(value, float(np.sqrt(np.square(residual * errors).sum())) / squares)
