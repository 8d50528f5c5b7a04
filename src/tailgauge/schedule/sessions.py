"""What follows a request: the next turn of a session, the next request of a user in a closed loop.

Pure functions of plain values. Whatever is drawn depends on the run's seed and the request's id only, so it is
the same on any worker, and in a dry run.
"""

from __future__ import annotations

import hashlib
import random
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field

from tailgauge.call import Prompt
from tailgauge.patterns.settings import TrafficSettings
from tailgauge.rows.schema import CLIENT_DROP, TURNS, WITH_ANSWER
from tailgauge.schedule.schedule import Planned
from tailgauge.schedule.settings import MAX_TOKENS, TASKS, Arrival

# A user whom the in-flight cap turned away waits at least this: else a full worker would spin.
AFTER_DROP_S = 0.1
Exchange = tuple[str, str]  # the question, the answer


@dataclass(slots=True, order=True)
class Turn:
    """One request to be sent; `at_ns` since the start of the run.

    `planned` is the arrival with which its session began, or its user; `asked` the same as this turn asks it.
    """

    at_ns: int
    request_id: int
    planned: Planned = field(compare=False)
    asked: Planned = field(compare=False)
    history: tuple[Exchange, ...] = field(default=(), compare=False)
    prompts: tuple[Prompt, ...] = field(default=(), compare=False)
    failed: Exception | None = field(default=None, compare=False)  # of a plugin's prompt source
    slot_wait_ns: int | None = field(default=None, compare=False)  # where requests wait for slots

    @classmethod
    def first(cls, planned: Planned) -> Turn:
        """Return the arrival itself."""
        return cls(planned.at_ns, planned.request_id, planned, planned)

    @property
    def number(self) -> int:
        """Turn within the arrival, from 0."""
        return self.request_id % TURNS

    @property
    def rest(self) -> int:
        """Turns that are planned after it."""
        return max(0, self.planned.turns - 1 - self.number)

    @property
    def is_closed(self) -> bool:
        """Return whether it is of a user of a closed loop."""
        return self.planned.turns == 0


@dataclass(slots=True)
class RequestPool:
    """The requests of a closed loop with a fixed number of requests that no user has sent yet, in their order."""

    arrival: Arrival
    seed: int
    coming: deque[Planned] = field(default_factory=deque)
    idle_users: int = 0  # users who found it empty

    def is_of_start(self, planned: Planned) -> bool:
        """Return whether a user begins with this request."""
        return planned.request_id // TURNS < self.arrival.closed.users

    def following(self, ended: str, ended_at_ns: int) -> Turn | None:
        """Return the request that a user sends after one that ended so; None where there is none left."""
        if not self.coming:
            self.idle_users += 1
            return None
        planned = self.coming.popleft()
        think_s = _think_after(self.arrival, self.seed, planned.request_id, ended)
        return Turn.first(planned._replace(at_ns=ended_at_ns + round(think_s * 1e9)))


def loop(arrival: Arrival, tables: Iterable[TrafficSettings]) -> str:
    """Return how requests come to be: open, closed, or partly open (sessions arrive on schedule, their turns wait)."""
    if not arrival.is_open:
        return "closed"
    if any(traffic.session.turns_mean > 1 for traffic in tables):
        return "partly open"
    return "open"


def requests_in(rows: Iterable[Planned]) -> int:
    """Requests of a slice of the plan; those of a closed loop are not planned and count when they arrive."""
    return sum(row.turns for row in rows)


def draw(seed: int, request_id: int) -> float:
    """Uniform in [0, 1), by the request's id."""
    digest = hashlib.blake2b(f"{seed}/draw/{request_id}".encode(), digest_size=8).digest()
    return (int.from_bytes(digest) >> 11) * 2.0**-53


def following(
    turn: Turn,
    ended: str,
    ended_at_ns: int,
    *,
    seed: int,
    arrival: Arrival,
    traffic: TrafficSettings,
) -> Turn | None:
    """Return the turn after one that ended so; its prompts are still to be made. None where the conversation is over.

    A session goes on after an answer only; a user of a closed loop stays, whatever came of the request. What follows the
    request of a task is the task's to say.
    """
    if arrival.process == TASKS:
        return None
    if turn.is_closed:
        is_last = turn.number == TURNS - 1
        request_id = turn.request_id + 1
        if is_last:
            request_id += (arrival.closed.users - 1) * TURNS
        think_s = _think_after(arrival, seed, request_id, ended)
    else:
        if ended not in WITH_ANSWER or turn.number + 1 >= turn.planned.turns:
            return None
        request_id = turn.request_id + 1
        think_s = _think_s(seed, request_id, traffic.session.think_s, traffic.session.think_sigma)
    planned = _later_turn(turn.planned, request_id, seed, traffic)
    return Turn(ended_at_ns + round(think_s * 1e9), request_id, turn.planned, planned, turn.history)


def conversation(turn: Turn, answer: str | None) -> tuple[Exchange, ...]:
    """Return the conversation up to now, this turn included."""
    question = "".join(part.text for part in turn.prompts[0].messages[-1].parts)
    return (*turn.history, (question, answer or ""))


def _later_turn(planned: Planned, request_id: int, seed: int, traffic: TrafficSettings) -> Planned:
    """Return a later turn: its line of a prompt file; what the trace has; else sizes drawn anew."""
    number = request_id % TURNS
    later = planned._replace(request_id=request_id - number).of_turn(number)
    if later.source is not None:
        return later
    rng = _drawing(f"{seed}/size/{request_id}", traffic.prompt_sigma or traffic.output_sigma)
    prompt = _lognormal(traffic.prompt_tokens, traffic.prompt_sigma, rng)
    output = _lognormal(traffic.output_tokens, traffic.output_sigma, rng)
    return later._replace(prompt_tokens=_tokens(prompt), output_tokens=_tokens(output))


def _think_after(arrival: Arrival, seed: int, request_id: int, ended: str) -> float:
    """Return how long a user of a closed loop thinks before a request, after one that ended so."""
    think_s = _think_s(seed, request_id, arrival.closed.think_s, arrival.closed.think_sigma)
    if ended != CLIENT_DROP:
        return think_s
    return max(think_s, AFTER_DROP_S)


def _think_s(seed: int, request_id: int, median_s: float, sigma: float) -> float:
    return _lognormal(median_s, sigma, _drawing(f"{seed}/think/{request_id}", sigma))


def _drawing(seed: str, sigma: float) -> random.Random | None:
    """Return a generator where something is drawn: to seed one takes as long as all the rest of a turn."""
    if not sigma:
        return None
    return random.Random(seed)


def _tokens(size: float) -> int:
    return min(MAX_TOKENS, max(1, round(size)))


def _lognormal(median: float, sigma: float, rng: random.Random | None) -> float:
    if sigma and rng:
        return median * rng.lognormvariate(0.0, sigma)
    return median
