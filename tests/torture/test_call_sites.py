"""One call of a call site fails in a run: ten sites drawn anew each time, and the kinds that were once wrong by name.

`make torture` makes a run for every site. A draw is repeated with `TAILGAUGE_SEED=N`.
"""

from __future__ import annotations

import os
import random
import secrets

import pytest
from torture import torture
from torture.torture import Fault, Torture, faults_of, torture_all

DRAWN = 10
# A kind of failure each, and what is expected of it beside what must always hold.
NAMED = {
    Fault("descriptors", "ENFILE", always=True): "no file descriptor is left on this machine",
    Fault("master fork ", "EAGAIN"): "",
    Fault("worker-before epoll_create ", "EMFILE"): "no file descriptor is left to this process",
}

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(torture.missing() is not None, reason=f"it needs {torture.missing()}"),
]


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> dict[Fault, Torture]:
    """The tortured runs, several at once."""
    seed = int(os.environ.get("TAILGAUGE_SEED") or secrets.randbelow(1 << 32))
    print(f"the draw is repeated with TAILGAUGE_SEED={seed}")
    folder = tmp_path_factory.mktemp("torture")
    library = torture.build(folder)
    faults = faults_of(torture.record(folder / "recorded", library))
    single = [fault for fault in faults if not fault.always and fault not in NAMED]
    chosen = [*NAMED, *random.Random(seed).sample(single, DRAWN)]
    done = torture_all(chosen, folder, library, at_once=2, show=lambda _: None)
    return {each.fault: each for each in done}


def test_runs_survive_a_failing_call_of_ten_drawn_sites(runs):
    drawn = [done for fault, done in runs.items() if fault not in NAMED]
    reached = [done for done in drawn if done.failed]
    print(f"{len(reached)} of {len(drawn)} sites were reached")

    wrong = [f"{done.fault.command()}: {text}" for done in drawn for text in done.violations]
    assert wrong == []
    assert len(reached) >= DRAWN / 2


@pytest.mark.parametrize("fault", NAMED, ids=lambda fault: f"{fault.site.strip()}-{fault.error}")
def test_a_run_survives_what_once_broke_it(runs, fault):
    done = runs[fault]

    assert done.failed, "the site was not reached"
    assert done.violations == []
    assert NAMED[fault] in " ".join((done.text("stdout") + done.text("stderr")).split())
