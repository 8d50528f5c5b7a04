"""Where a worker writes its rows: into the master's run folder if it is on this machine, which a mark in it tells."""

import pytest

from tailgauge.worker.run_parts import run_folder

pytestmark = pytest.mark.gevent


@pytest.mark.parametrize(
    ("mark", "is_shared"), [("a", True), ("another run's", False), (None, False)]
)
def test_a_folder_of_the_same_path_on_another_machine_is_not_the_masters(mark, is_shared, tmp_path):
    folder = tmp_path / "runs" / "r1"
    folder.mkdir(parents=True)
    plan = {"folder": str(folder), "mark": "a", "run": {"run_id": "r1"}}
    if mark is not None:
        run_folder(plan, tmp_path)[0].mark.write_text(mark)

    found, shared = run_folder(plan, tmp_path)

    assert (found.path, shared) == (folder, is_shared)
