"""What to do next about a target that fails: one table from evidence to one action.

Evidence: what prevails among the failures (failures.py), when it began (onset.py), whether waits grow with the load, and what
the client itself added, retries and hedge copies (capacity.py). Where nothing matches there is no advice. The commands in it
are made in commands.py and length.py; which advice a result shows is decided in result.py.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property

import numpy as np
import pandas as pd

from tailgauge.call import MAIN
from tailgauge.command_line import with_command
from tailgauge.protocol_violations import VIOLATIONS
from tailgauge.rows import schema
from tailgauge.vendors import refused_limit_field
from tailgauge_analysis.metrics import stability
from tailgauge_analysis.metrics.steady import at_slots, end_ns, is_of_tasks
from tailgauge_analysis.metrics.unanswered import SIGNS
from tailgauge_analysis.metrics.waiting import seconds
from tailgauge_analysis.run import Run
from tailgauge_analysis.sections import capacity, commands, ends, failures
from tailgauge_analysis.sections.capacity import Load
from tailgauge_analysis.sections.commands import CURVE, HEADROOM
from tailgauge_analysis.sections.ends import percent
from tailgauge_analysis.sections.failures import KINDS, Failures
from tailgauge_analysis.sections.onset import Onset, common_s, onset, with_outage
from tailgauge_analysis.sections.rate_limits import section as rate_limits
from tailgauge_analysis.sections.rate_limits.retries import MUCH, Amplification
from tailgauge_analysis.stats import stationarity
from tailgauge_analysis.stats.quantiles import Floats
from tailgauge_analysis.text.formatting import count, figures, listed, ms, plain, plural
from tailgauge_analysis.text.json_values import number, table, text

REFUSED_ADVICE = "look at the prompts, the model and its content filter: see How answers ended"
# The environment variable of a key where the scenario names none.
PROVIDER_KEYS = {"anthropic": "ANTHROPIC_API_KEY", "openai": "OPENAI_API_KEY"}
NAMES = 3  # in a sentence
MANY_HEDGES = 0.15  # relative to first attempts
FEWEST_STAIRS = 3  # answers
PART = 0.25  # of the failures, that one cause at the end of the run has to go first
FEWEST = 5  # answers whose waits show whether a queue grows
FEWEST_NEIGHBOURS = 8  # answers whose waits are compared with the next one's
CLIMB = 8  # answers before the first failure, whose waits may climb
FEWEST_IN_CLIMB = 4
CLIMBS = 0.8  # rank correlation of their waits with their order
ALIKE = 0.6  # rank correlation of neighbours in a queue
NEAR = 0.5  # of the wait of those that failed, at the p90 of those that were answered
LONG = 0.7  # of the deadline, at the p90 of the complete answers: others come too late by chance

MIN_COMPLETED = "stop.min_completed"
EQUAL_REJECTIONS = "stop.rejections"
QUEUE = "queue"
RETRIES = "retries"
HEDGES = "hedges"
# Failures that a target has where it gets more than it can do.
_OF_LOAD = (
    failures.LIMIT,
    failures.OVERLOAD,
    failures.WAITING,
    failures.GATEWAY_TIME,
    failures.LEFT,
    failures.CLIENT,
)


@dataclass(frozen=True, slots=True)
class Cause:
    """What most failures have in common. `sentence`: for the first line, empty where the list of ends says it all.

    `advice`: a step to take, and in a further line another one to choose.
    """

    sentence: str
    advice: str


def prevailing(run: Run, fine: Iterable[str] = schema.COMPLETE) -> Cause | None:
    """Return what most failed requests of the steady stage have in common, and what to do; None where none failed.

    `fine`: the ends that are no failure. A kind of failure that is all that comes from some moment to the end of the run goes
    before a more frequent one. The sentence is empty where the cause is behind fewer than half of the failures.
    """
    all_failures = with_outage(run, failures.failures(run, fine))
    if not len(all_failures):
        return None
    most_frequent_kind = _most_frequent_kind(all_failures)
    kind = _kind_at_the_end(run, all_failures) or most_frequent_kind
    evidence = Evidence(run, all_failures.of_kind(kind), all_failures)
    is_half = 2 * len(evidence.kind_failures) >= len(all_failures)
    sentence = ""
    if is_half:
        sentence = _cause_sentence(kind, evidence.kind_failures, len(run.steady.requests))
    # A queue, retries or hedges behind failures that load can cause; empty where the kind itself says what to do.
    load_cause = _load_cause_of(evidence, kind)
    advice = _ADVICE[load_cause or kind](evidence)
    # What failed most until then goes behind the text, and in front of the command.
    if kind != most_frequent_kind:
        # An advice may end in a command to copy.
        text, command = with_command(advice)
        advice = (
            f"{text.removesuffix(':')}{_earlier_failures(all_failures.of_kind(most_frequent_kind))}"
        )
        if command:
            advice += f": {command}"
    # A stop rule ended the run: a second line says how to overload the target on purpose.
    if (load_cause or kind in _OF_LOAD) and MIN_COMPLETED in run.record["stopped"]:
        advice += f"\n{_advice_to_overload(run)}"
    return Cause(sentence, advice)


def _advice_to_overload(run: Run) -> str:
    """Return how to overload a target on purpose, where a stop rule ended the run."""
    override = f"{MIN_COMPLETED}=0"
    line = commands.again(run.record, [override]) or f"add --set {override}"
    return f"or overload it on purpose, to the end of the run: {line}"


def of_growth(run: Run) -> str:
    """Return what to do about requests that pile up, where none of them failed."""
    evidence = _without_failures(run)
    return _ADVICE[_added_load(evidence) or QUEUE](evidence)


def of_rejections(run: Run, kind: str) -> str:
    """Return what to do about attempts that were rejected, also where a retry was answered."""
    return _ADVICE[kind](_without_failures(run))


def _without_failures(run: Run) -> Evidence:
    every = run.result(failures.incomplete)
    nothing = replace(every, rows=every.rows[:0])
    return Evidence(run, nothing, nothing)


def of_preflight(run: Run) -> str:
    """Return what to do about a target that failed the preflight."""
    attempts = run.frames.attempts
    rows = attempts[
        (attempts["stage"] == schema.PREFLIGHT) & ~attempts["ended"].isin(schema.SERVED)
    ]
    every = failures.classified(rows, failures.protocol_of(run))
    if not len(every):
        return ""
    kind = _most_frequent_kind(every)
    return _ADVICE[kind](Evidence(run, every.of_kind(kind), every))


def _most_frequent_kind(every: Failures) -> str:
    """Return the kind of most failures; what the client dropped only where nothing else failed."""
    counts: Counter[str] = Counter(every.rows["kind"])
    if len(counts) > 1:
        counts.pop(failures.CLIENT, None)
    return min(counts, key=lambda kind: (-counts[kind], KINDS.index(kind)))


def _kind_at_the_end(run: Run, every: Failures) -> str:
    """Return the kind of all failures from a moment on to the end, unless they are few; empty without one."""
    # The last requests of any run are open at its end.
    finished = every.rows[every.rows["ended"] != schema.CENSORED]
    counts: Counter[str] = Counter(finished["kind"])
    for kind, failed in counts.most_common():
        if kind == failures.CLIENT or failed < PART * len(every):
            continue
        # From when, and until when, nearly every request failed so.
        when = onset(run, every.of_kind(kind), every)
        if when.since_s is not None and when.until_s is None:
            return kind
    return ""


def _earlier_failures(failures: Failures) -> str:
    """Return what failed before the cause that holds at the end."""
    return f"; before: {count(len(failures))} {failures.common.label}"


def _load_cause_of(evidence: Evidence, kind: str) -> str:
    """Return what explains failures that load can cause; empty where they explain themselves."""
    is_rejected = kind in {failures.LIMIT, failures.OVERLOAD}
    if kind not in _OF_LOAD or not (is_rejected or evidence.waits_grow):
        return ""
    return _added_load(evidence) or ("" if is_rejected else QUEUE)


def _added_load(evidence: Evidence) -> str:
    """Return what adds most load to first attempts that the target may serve; empty where they alone are too many."""
    if evidence.fits is False:
        return ""
    retries = 0.0
    if evidence.amplification is not None and not evidence.is_limited:
        retries = evidence.amplification.observed - 1
    if evidence.has_many_copies and evidence.copies >= retries:
        return HEDGES
    return RETRIES if retries else ""


def _cause_sentence(kind: str, every: Failures, requests: int) -> str:
    """Return the cause as a share of all requests of the stage, which are those of the list of ends."""
    part = f"{percent(len(every) / requests)} of {plural(requests, 'request')}"
    if kind == failures.CONTENT:
        ends = set(every.rows["ended"])
        names = [name for name in (schema.REFUSED, schema.FILTERED) if name in ends]
        return f"{part} were {' or '.join(names)}"
    if kind == failures.UNNAMED_END:
        return f"{part} got an answer without a finish reason"
    if kind == failures.UNKNOWN_END:
        return f"{part} got an answer with an unknown finish reason ({_reasons(every)})"
    if kind == failures.ENGINE:
        return f"{part} were aborted by the engine"
    return ""


def _reasons(failures: Failures) -> str:
    return listed(dict.fromkeys(repr(reason) for reason in failures.rows["stop_reason"]), NAMES)


# --- evidence -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Evidence:
    """What an advice is made from: the failures of the kind that prevails, those of all kinds, and the run.

    Both have no rows where the advice is about requests that did not fail.
    """

    run: Run
    kind_failures: Failures
    all_failures: Failures

    @cached_property
    def onset(self) -> Onset:
        """Return when they began."""
        return onset(self.run, self.kind_failures, self.all_failures)

    @property
    def when(self) -> str:
        """Return ` since 8.1 s`; empty where they are spread over the run."""
        return self.onset.text

    @property
    def quoted(self) -> str:
        """Return ` (it says "...")`; empty where the target says nothing, or where the reason of a stop says it already."""
        if EQUAL_REJECTIONS in self.run.record["stopped"]:
            return ""
        quote = self.kind_failures.quote
        if not quote:
            return ""
        return f" (it says {quote})"

    @cached_property
    def complete_s(self) -> Floats:
        """Return the seconds until the end of complete answers, in order of arrival."""
        requests = self.run.steady.requests
        complete = requests[requests["ended"].isin(schema.COMPLETE)]
        start_ns = complete["first_sent_at_ns"].fillna(complete["scheduled_at_ns"])
        return seconds(complete["ended_at_ns"] - start_ns)

    @cached_property
    def waits_grow(self) -> bool:
        """Return whether requests wait longer and longer, as in a queue; False in a closed loop, whose users wait for answers.

        Waits are from when a request was due to its first content, of the steady stage. Three signs are enough, each by
        itself: waits that climb before the first failure; a wait in the last third twice that in the first; waits that are
        close to those of the failed requests, and alike from one request to the next.
        """
        if self.run.record["arrival"] == "closed":
            return False
        if self._waits_climb:
            return True
        requests = self.run.steady.requests
        # To the first content, else the join of a fan-out, else the end; of open requests to the end of the run.
        end_at_ns = (
            requests["first_at_ns"].fillna(requests["joined_at_ns"]).fillna(requests["ended_at_ns"])
        )
        waits_s = seconds(end_at_ns.fillna(end_ns(self.run.frames)) - requests["scheduled_at_ns"])
        is_answered = requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
        answered_s = waits_s[is_answered]
        has_failed = (
            requests["request_id"].isin(self.kind_failures.rows["request_id"]).to_numpy(np.bool_)
        )
        is_near = _is_near(answered_s, waits_s[has_failed])
        # So few answers show a queue only beside a backlog, or where each waited longer than the one before.
        if len(answered_s) < FEWEST:
            return self._is_backlog or (is_near and _is_stairs(answered_s))
        if _is_doubled(answered_s) and stationarity.rises(answered_s):
            return True
        # In a queue the waits of neighbours are alike, and come near to those of the requests that failed.
        return is_near and _neighbour_correlation(answered_s) >= ALIKE

    @property
    def _waits_climb(self) -> bool:
        """Return whether the last answers before the first failure waited longer and longer, up to near the failures' wait.

        Only where most requests fail from then on: a target that goes on with what was given up may answer nothing in time.
        All requests but the preflight count, the warm-up too. A wait is from when a request was due to its first content.
        """
        requests = self.run.frames.requests
        requests = requests[requests["stage"] != schema.PREFLIGHT].drop_duplicates("request_id")
        requests = requests.sort_values("scheduled_at_ns", kind="stable")
        content_ns = self.run.frames.attempts.groupby("request_id")["first_content_at_ns"].min()
        waited_until_ns = requests["request_id"].map(content_ns).to_numpy(np.float64)
        ended_ns = requests["ended_at_ns"].fillna(end_ns(self.run.frames))
        waited_until_ns = np.where(np.isfinite(waited_until_ns), waited_until_ns, ended_ns)
        waits_s = (waited_until_ns - requests["scheduled_at_ns"].to_numpy(np.float64)) / 1e9
        is_answered = requests["ended"].isin(schema.COMPLETE).to_numpy(np.bool_)
        if is_answered.all():
            return False
        first_failure = int(np.argmin(is_answered))
        climb_s = waits_s[:first_failure][-CLIMB:]
        fails_from_then_on = is_answered[first_failure:].mean() < 0.5
        if (
            not fails_from_then_on
            or len(climb_s) < FEWEST_IN_CLIMB
            or not _is_near(climb_s, waits_s[~is_answered])
        ):
            return False
        # Equal waits have no correlation with their order.
        ranks = stationarity.ranks(climb_s)
        return (
            bool(ranks.std()) and float(np.corrcoef(ranks, np.arange(len(ranks)))[0, 1]) >= CLIMBS
        )

    @property
    def _is_backlog(self) -> bool:
        return self.run.evidence.stability.of(stability.BACKLOG) is not None

    @cached_property
    def amplification(self) -> Amplification | None:
        """Return the attempts per call of the table that retries most; None where they are few."""
        limits = self.run.result(rate_limits.compute)
        if limits is None:
            return None
        worst = limits.most_retried
        if worst is None or worst.observed < MUCH:
            return None
        return worst

    @property
    def hedged(self) -> list[str]:
        """Return the traffic tables whose hedge copies were sent to the main target."""
        sent = self.run.steady.sent
        is_copy = (sent["cause"] == schema.HEDGE) & (sent["target"] == MAIN)
        return [str(name) for name in sent.loc[is_copy, "traffic"].unique()]

    @cached_property
    def load(self) -> Load | None:
        """Return the load of first attempts, and what the target can serve; None where few were sent."""
        return capacity.load(self.run.frames)

    @property
    def is_limited(self) -> bool:
        """Return whether a rate limit rejected the calls."""
        return bool(len(self.kind_failures)) and self.kind_failures.common.kind == failures.LIMIT

    @property
    def is_always_limited(self) -> bool:
        """Return whether every call of the run, the first one included, got a 429."""
        attempts = self.run.frames.attempts
        sent = attempts[attempts["sent_at_ns"].notna()]
        return bool(len(sent)) and bool((sent["ended"] == schema.RATE_LIMITED).all())

    @property
    def retry_after_s(self) -> float | None:
        """Return for how long the target asks to wait, as the median; None where it does not say."""
        waits_s = self.run.frames.attempts["retry_after_s"].dropna()
        if not len(waits_s):
            return None
        return float(waits_s.median())

    @property
    def fits(self) -> bool | None:
        """Return whether the target can serve the first attempts alone; None: not known."""
        if self.load is None:
            return None
        if self.is_limited:
            return self.load.is_accepted
        return self.load.fits

    @property
    def copies(self) -> float:
        """Return the hedge copies at the main target, relative to first attempts."""
        if self.load is None:
            return 0.0
        return self.load.copies_per_s / self.load.offered_per_s

    @property
    def has_many_copies(self) -> bool:
        """Return whether hedge copies are a large part of the load."""
        return self.copies >= MANY_HEDGES

    @property
    def added(self) -> str:
        """Return ` by first attempts alone ...`, and what copies and retries add, where the load is too much without them."""
        added = []
        if self.has_many_copies:
            added.append(f"hedge copies add {percent(self.copies)}")
        if self.amplification is not None:
            added.append(f"retries make {self.amplification.text}")
        if self.load is None or not added or self.fits is not False:
            return ""
        rates = ""
        if self.rates:
            rates = f" ({self.rates})"
        return f" by first attempts alone{rates}, and {' and '.join(added)}"

    @property
    def rates(self) -> str:
        """Return what was offered and what completed in the steady stage, as the line `target` does; may be empty."""
        return self.run.evidence.throughput.text

    @property
    def deadline_s(self) -> float:
        """Return after how many seconds a call is given up."""
        limits = table(self.run.record["scenario"], "limits")
        return number(limits.get("attempt_deadline_s")) or math.inf

    @property
    def drain_s(self) -> float:
        """Return for how long open requests are waited for at the end."""
        limits = table(self.run.record["scenario"], "limits")
        return number(limits.get("drain_s")) or 0.0

    @property
    def lost_ids(self) -> frozenset[int]:
        """Return the requests that gave no sign for longer than any answer takes."""
        lost = self.run.evidence.stability.unanswered
        if lost is None:
            return frozenset()
        return lost.ids

    def find(self, kind: str) -> str:
        """Return the command of the experiment that finds the load which the target takes; empty where there is none."""
        rate = self.run.evidence.throughput.offered_per_s
        line = commands.experiment(self.run.record, kind, rate)
        return line or commands.experiment(self.run.record, CURVE, rate) or ""


def _is_near(answered: Floats, failed: Floats) -> bool:
    """Return whether some that were answered waited almost as long as those that failed."""
    if not len(answered) or not len(failed):
        return False
    return float(np.quantile(answered, 0.9)) >= NEAR * float(np.median(failed))


def _is_stairs(waits: Floats) -> bool:
    """Return whether each of a few requests waited longer than the one before."""
    return len(waits) >= FEWEST_STAIRS and bool((np.diff(waits) > 0).all())


def _is_doubled(waits: Floats) -> bool:
    """Return whether the last third waited twice as long as the first."""
    third = max(1, len(waits) // 3)
    return float(np.median(waits[-third:])) >= 2 * float(np.median(waits[:third]))


def _neighbour_correlation(waits: Floats) -> float:
    """Return the rank correlation of waits with those of the next request."""
    ranks = stationarity.ranks(waits)
    if len(ranks) < FEWEST_NEIGHBOURS or not ranks.std():
        return 0.0
    return float(np.corrcoef(ranks[:-1], ranks[1:])[0, 1])


# --- actions ------------------------------------------------------------------------------------------------------

_Action = Callable[[Evidence], str]


def _always(advice: str) -> _Action:
    return lambda _evidence: advice


def _found_by(evidence: Evidence, cause: str, kind: str) -> str:
    """Return a cause that load has, and how to find the load that is not too much."""
    is_closed = evidence.run.record["arrival"] == "closed"
    line = evidence.find(kind)
    if not line:
        return f"{cause}: {'use fewer users' if is_closed else 'send less'}"
    condition = ", without retries" if ".retry.policy=none" in line else ""
    if is_closed:
        return f"{cause}: use fewer users, or find how many requests in flight the target takes{condition}: {line}"
    return f"{cause}: find the rate that the target sustains{condition}: {line}"


def _limited(evidence: Evidence) -> str:
    if evidence.is_always_limited:
        symptom = f"every call got 429, even the first{evidence.quoted}"
        asked_s = evidence.retry_after_s
        wait = ""
        if asked_s is not None:
            wait = f"; the target asks to wait {asked_s:,.3g} s"
        return f"{symptom}: a quota or the account rejects them, not this rate: look at its limits{wait}"
    cause = "a rate limit of the target rejects calls"
    if (
        evidence.amplification is not None
        and evidence.fits is False
        and len(evidence.kind_failures)
    ):
        failed = percent(len(evidence.kind_failures) / len(evidence.run.steady.requests))
        retried = f"{evidence.amplification.text}, and {failed} of requests still ended with a 429"
        cause += f", and retries gain nothing ({retried}); switch them off, or pace the client"
    return _found_by(evidence, cause, HEADROOM)


def _overloaded(evidence: Evidence) -> str:
    # After a preflight that failed there is no request of the steady stage.
    requests = len(evidence.run.steady.requests)
    if len(evidence.kind_failures) and len(evidence.kind_failures) >= requests:
        return f"the target rejects every request as overloaded{evidence.quoted}: look at who else uses it"
    return _found_by(evidence, f"the target is overloaded{evidence.when}{evidence.added}", CURVE)


def _queue(evidence: Evidence) -> str:
    slots = at_slots(evidence.run.record["scenario"])
    if slots:
        return _found_by(evidence, f"requests wait for a slot{slots}", CURVE)
    return _found_by(evidence, f"requests queue up at the target{evidence.added}", CURVE)


def _retries(evidence: Evidence) -> str:
    """Return the advice where retries add the load: run again with retries that wait, without any where they wait already.

    The evidence has the traffic table with the most attempts per call, at least MUCH.
    """
    most_retried = evidence.amplification
    assert most_retried is not None
    traffic = table(table(evidence.run.record["scenario"], "traffic"), most_retried.traffic)
    variant = "polite"
    condition = "with retries that wait and have a budget"
    if table(traffic, "retry").get("policy") == "polite":
        variant = "none"
        condition = "without retries"
    # `fits` is None where the rows do not show whether the target could serve the first attempts alone.
    effect = ", which overload the target"
    if evidence.load is not None and evidence.fits is None:
        effect = ", which overload the target; the run does not show whether the first attempts alone would overload it too"
        if evidence.rates:
            effect += f" ({evidence.rates})"
    again = _run_again(
        evidence, condition, [f"traffic.{most_retried.traffic}.retry.policy={variant}"]
    )
    return f"retries make {most_retried.text}{effect}: {again}"


def _hedges(evidence: Evidence) -> str:
    load = evidence.load
    assert load is not None
    offered = f"without hedges {figures(load.offered_per_s)} calls/s"
    offered += f", with them {figures(load.offered_per_s + load.copies_per_s)}"
    sets = [f"traffic.{name}.hedge.policy=off" for name in evidence.hedged]
    if evidence.fits is None:
        rates = "; ".join(filter(None, [offered, evidence.rates]))
        again = _run_again(evidence, "without hedges to find out", sets)
        return f"hedge copies add load; the run does not show whether the calls without them would overload the target too ({rates}): {again}"
    served = f"the target can serve {figures(load.low_per_s)}/s"
    if evidence.is_limited:
        served = f"the target accepts {figures(load.high_per_s)}/s"
    return f"hedge copies add load ({offered}; {served}): {_run_again(evidence, 'without hedges', sets)}"


def _run_again(evidence: Evidence, condition: str, sets: Sequence[str]) -> str:
    """Return `run again without hedges: tailgauge run ...`; without the command where there is none."""
    line = commands.again(evidence.run.record, sets)
    if line:
        return f"run again {condition}: {line}"
    return f"run again {condition}"


def _unnamed(evidence: Evidence) -> str:
    """An endpoint that never names a reason leaves it out; where others have one, it got lost with the end."""
    symptom = "the answers end without a finish reason, SDK users get null"
    stop_reasons = evidence.run.result(ends.compute).stop_reasons
    if any(row.stop_reason is not None for row in stop_reasons):
        return f"{symptom}: other answers name one, so these probably broke off; look at the logs of engine and gateway"
    return f"{symptom}: no answer names one, so the engine or a gateway before it probably leaves it out"


def _unknown_end(evidence: Evidence) -> str:
    explanation = "the table of vendors does not know it, so these answers count as aborted"
    return f"look up what the finish reason {_reasons(evidence.kind_failures)} means at this target: {explanation}"


def _key(evidence: Evidence) -> str:
    target = table(evidence.run.record["scenario"], "target")
    variable = text(target.get("api_key_env"))
    provider_key = variable or PROVIDER_KEYS.get(text(target.get("protocol")), "")
    refuses = f"the target refuses the key{evidence.when}{evidence.quoted}"
    if evidence.onset.since_s is not None and len(evidence.complete_s):
        refuses += ", which it accepted before"
    if not variable and f"api.{text(target.get('protocol'))}.com" not in text(target.get("url")):
        return f"{refuses}: export API_KEY=... and add --set target.api_key_env=API_KEY"
    return f"{refuses}: check the key in {plain(provider_key, 100)} and its permissions"


def _model(evidence: Evidence) -> str:
    model = plain(text(table(evidence.run.record["scenario"], "target").get("model")), 100)
    return f"the target does not have the model {model!r}{evidence.when}{evidence.quoted}: choose one that it has (--model NAME)"


def _quota(evidence: Evidence) -> str:
    return f"the account has no quota left{evidence.when}{evidence.quoted}: check its plan and billing, a slower run does not help"


def _page(evidence: Evidence) -> str:
    title = evidence.kind_failures.quote
    named = ""
    if title:
        named = f" ({title})"
    return f"an HTML page comes back instead of answers{evidence.when}{named}: check target.url, and the proxy or gateway on the way"


def _redirected(evidence: Evidence) -> str:
    failure = evidence.kind_failures.common
    location = failure.text
    if not location:
        return "set target.url to the address that answers: this one redirects without a location"
    return f"the target answers {failure.status} with location {location}{evidence.when}: set target.url to it"


def _address(evidence: Evidence) -> str:
    status = evidence.kind_failures.common.status
    if (evidence.kind_failures.rows["cause"] == schema.POLL).mean() > 0.5:
        return f"the target does not know jobs that it accepted{evidence.when} ({status}){evidence.quoted}: look at how long it keeps them, and whether its servers share them"
    return f"the target has no such path{evidence.when} ({status}){evidence.quoted}: check target.url and target.protocol"


def _request(evidence: Evidence) -> str:
    quote = evidence.kind_failures.quote
    refused = refused_limit_field(quote)
    if refused:
        return (
            f"the target refuses {refused}{evidence.when}: {_other_limit_field(evidence, refused)}"
        )
    return f"change what is sent: the target rejects these requests{evidence.when}{': ' if quote else ', and Errors has its reasons'}{quote}"


def _other_limit_field(evidence: Evidence, refused: str) -> str:
    """Return how to send the maximum of output tokens under its other name."""
    alternative = "max_tokens" if refused == "max_completion_tokens" else "max_completion_tokens"
    if is_of_tasks(evidence.run.record["scenario"]):
        return f"write {alternative} in the body of the task"
    return f"add --set target.max_tokens_field={alternative}"


def _protocol(evidence: Evidence) -> str:
    wrong = VIOLATIONS.get(evidence.kind_failures.common.error_type or "", "")
    detail = ""
    if wrong:
        detail = f" ({wrong})"
    return f"look at the endpoint or the gateway before it{evidence.when}: its answers break the protocol{detail}; --keep-answers 1 keeps them"


def _not_ready(evidence: Evidence) -> str:
    return (
        f"the target is not ready{evidence.when}{evidence.quoted}: wait until it is, then run again"
    )


def _gateway(evidence: Evidence) -> str:
    status = evidence.kind_failures.common.status
    named = ""
    if status:
        named = f" ({status})"
    return f"the gateway gets no answer from the engine behind it{evidence.when}{named}{evidence.quoted}: look at the logs of both"


def _gateway_time(evidence: Evidence) -> str:
    after_s = common_s(_durations_s(evidence.kind_failures))
    delay = ""
    if after_s is not None:
        delay = f" after {after_s:.3g} s"
    return f"the gateway gives up{delay}{evidence.when} ({evidence.kind_failures.common.status}): raise its time limit, or find out why the engine takes longer"


def _broken(evidence: Evidence) -> str:
    failure = evidence.kind_failures.common
    status = ""
    if failure.status not in {None, 200}:
        status = f" ({failure.status})"
    return f"the target fails{evidence.when}{status}{evidence.quoted}: look at its log"


def _broken_off(evidence: Evidence) -> str:
    """A time that all have in common is a timer's: of a silence, or of the whole answer where no complete one took longer."""
    failures = evidence.kind_failures
    silent_s = common_s(_silences_s(failures))
    whole_s = common_s(_durations_s(failures))
    if silent_s is not None:
        return f"answers break off after a silence of {silent_s:.3g} s{evidence.when}: raise the read timeout of the gateway or proxy before the target, or send keep-alives"
    longest_s = float(evidence.complete_s.max(initial=0.0))
    if whole_s is not None and longest_s <= 1.1 * whole_s:
        return f"answers break off after {whole_s:.3g} s{evidence.when}: raise the time limit of the gateway or proxy before the target"
    return f"answers break off{evidence.when}: look at the logs of the engine and of gateways before it, and at their time limits"


def _waiting(evidence: Evidence) -> str:
    """Return the advice where requests ran into the deadline of the client, or were open when the run ended.

    The target hangs where these are silent while others are answered long before the deadline. Else the answers may take longer
    than the deadline allows.
    """
    failures = evidence.kind_failures
    deadline = f"limits.attempt_deadline_s ({evidence.deadline_s:g} s)"
    failed_requests = plural(len(failures), "request")
    has_content = failures.rows["first_content_at_ns"].notna()
    end_at_ns = failures.rows["ended_at_ns"].fillna(end_ns(evidence.run.frames))
    waits_s = (end_at_ns - failures.rows["scheduled_at_ns"]) / 1e9
    waited_s = float(waits_s.median())
    # Silent: without a sign for longer than any answer of the run takes, or for half of the deadline.
    is_silent = failures.rows["request_id"].isin(evidence.lost_ids)
    is_silent |= (end_at_ns - _last_sign_ns(failures)) / 1e9 >= 0.5 * evidence.deadline_s
    complete_s = evidence.complete_s
    # Of those that waited longest: the others had no time to show a silence.
    if is_silent[waits_s >= waited_s].mean() < 0.5:
        is_open = (failures.rows["ended"] == schema.CENSORED).mean() > 0.5
        limit = deadline
        if is_open:
            limit = f"the end of the drain (limits.drain_s, {evidence.drain_s:g} s)"
        verb = "still got content" if has_content.mean() > 0.5 else "had no answer yet"
        return f"{failed_requests} {verb} at {limit}: raise it, or request shorter answers"
    # No request of the stage completed: nothing shows how long answers take.
    if not len(complete_s):
        return f"nothing came within {deadline}: raise it if answers take longer, else the target does not answer: look at its log"
    if float(np.quantile(complete_s, 0.9)) > LONG * waited_s:
        return f"answers take about as long as the client waits for them ({waited_s:.3g} s): raise {deadline} and limits.drain_s, or request shorter answers"
    what_it_does = (
        "stops in the middle of answers and stays silent"
        if has_content.mean() > 0.5
        else "gives no answer"
    )
    usual = f"while others take {ms(1000 * float(np.median(complete_s)))} ms"
    return f"the target {what_it_does}{evidence.when} in {failed_requests}, {usual}: look at its log, and set an idle timeout in clients"


def _outage(evidence: Evidence) -> str:
    rows = evidence.kind_failures.rows
    refused = replace(evidence.kind_failures, rows=rows[rows["ended"] == schema.CONNECT_ERROR])
    quote = refused.quote.strip('"') or "no connection"
    cut = len(rows) - len(refused)
    reason = quote
    if cut:
        reason = f"{quote}; {plural(cut, 'open call')} broke off as it went"
    if evidence.onset.until_s is None:
        return f"the target is gone{evidence.when} ({reason}): find out why it stopped, and start it again"
    return (
        f"the target was gone{evidence.when} ({reason}): find out why it was restarted or cut off"
    )


def _other_protocol(evidence: Evidence) -> str:
    """Some answers are of another protocol where several servers stand behind one address."""
    protocol = failures.protocol_of(evidence.run)
    answers = plural(len(evidence.kind_failures), "answer")
    symptom = f"no event of {answers} was understood"
    other = evidence.kind_failures.common.other_protocol
    if other:
        symptom = f"{answers} had events of protocol {other}"
    is_part = len(evidence.complete_s) and not evidence.when
    subject = "some servers behind the address answer" if is_part else "the address answers"
    return f"{subject} in another protocol than {protocol}{evidence.when} ({symptom}): check target.protocol and target.url"


def _unreachable(evidence: Evidence) -> str:
    reason = evidence.kind_failures.quote.strip('"') or "no connection"
    if not len(evidence.complete_s):
        return f"nothing answers at the address ({reason}): start the target, or correct target.url"
    return f"{plural(len(evidence.kind_failures), 'call')} could not connect{evidence.when} ({reason}): check how many connections the target allows, and whether it stayed up"


def _name(evidence: Evidence) -> str:
    return f"the target's host name has no address{evidence.when}: check DNS and target.url"


def _tls(evidence: Evidence) -> str:
    return f"TLS with the target fails{evidence.when}{evidence.quoted}: check its certificate, target.ca_file, and http or https in target.url"


def _reset(evidence: Evidence) -> str:
    after_s = common_s(_durations_s(evidence.kind_failures))
    if after_s is not None:
        return f"connections are closed after {after_s:.3g} s without an answer{evidence.when}: raise the read timeout of the gateway or proxy before the target"
    return f"connections are closed before an answer{evidence.when}: look at the target's log, and at how many connections it and gateways before it allow"


def _abandoned(evidence: Evidence) -> str:
    rows = evidence.kind_failures.rows
    patience_s = float(np.nanmedian(_durations_s(evidence.kind_failures)))
    share_without_content = float(rows["first_content_at_ns"].isna().mean())
    symptom = f"{percent(share_without_content)} of those who left had no content yet"
    return f"compare the patience of the users with the latency of the answers: they left after {patience_s:.3g} s (median), and {symptom}"


def _durations_s(failures: Failures) -> Floats:
    return seconds(failures.rows["ended_at_ns"] - failures.rows["sent_at_ns"])


def _silences_s(failures: Failures) -> Floats:
    """Return the time between the last sign of each call and its end."""
    return seconds(failures.rows["ended_at_ns"] - _last_sign_ns(failures))


def _last_sign_ns(failures: Failures) -> pd.Series[float]:
    """Return when each call gave its last sign, or was sent."""
    last_ns: pd.Series[float] = failures.rows[["sent_at_ns", *SIGNS]].max(axis=1)
    return last_ns


_ADVICE: dict[str, _Action] = {
    failures.CONTENT: _always(REFUSED_ADVICE),
    failures.UNNAMED_END: _unnamed,
    failures.UNKNOWN_END: _unknown_end,
    failures.ENGINE: _always("look at the engine's log: it gave up these answers itself"),
    failures.EMPTY: _always(
        "look at the prompts and the model: its answers have no content; raise output_tokens if it thinks first"
    ),
    failures.QUOTA: _quota,
    failures.KEY: _key,
    failures.MODEL: _model,
    failures.PAGE: _page,
    failures.REDIRECT: _redirected,
    failures.ADDRESS: _address,
    failures.REQUEST: _request,
    failures.OTHER_PROTOCOL: _other_protocol,
    failures.PROTOCOL: _protocol,
    failures.LIMIT: _limited,
    failures.OVERLOAD: _overloaded,
    failures.NOT_READY: _not_ready,
    failures.GATEWAY: _gateway,
    failures.GATEWAY_TIME: _gateway_time,
    failures.BROKEN: _broken,
    failures.BROKEN_OFF: _broken_off,
    failures.INSIDE: _always(
        "look at the target's own errors inside its answers: Errors has their texts"
    ),
    failures.WAITING: _waiting,
    failures.GONE: _outage,
    failures.UNREACHABLE: _unreachable,
    failures.NAME: _name,
    failures.TLS: _tls,
    failures.RESET: _reset,
    failures.LEFT: _abandoned,
    failures.CLIENT: _always(
        "lower the rate if the target cannot keep up, else raise limits.in_flight_per_worker"
    ),
    failures.PLUGIN: _always("look at the code of the plugin: the notes of the run have its error"),
    failures.CHECK: _always("the tasks rejected these answers with response.failure()"),
    QUEUE: _queue,
    RETRIES: _retries,
    HEDGES: _hedges,
}
