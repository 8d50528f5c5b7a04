"""Run folders whose requests have given attempts."""

import pytest
from run_folders.run_data import edited_run


@pytest.fixture
def folder_of(mixed, tmp_path):
    """A run folder of requests with these attempts, one every 100 ms; keywords change the scenario.

    A list is the attempts of one request; `record`: changes of run.json.
    """

    def of(*attempts, record=None, **scenario):
        run = mixed(duration_s=100.0)
        for number, attempt in enumerate(attempts):
            several = attempt if isinstance(attempt, list) else [attempt]
            ended = several[-1].get("ended", "ok")
            run.request(100 * number, several, ended=ended, asked_output_tokens=200)
        folder = run.write(tmp_path / "run")
        with edited_run(folder) as changed:
            changed["scenario"] |= scenario
            changed.update(record or {})
        return folder

    return of
