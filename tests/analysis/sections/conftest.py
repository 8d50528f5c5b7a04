"""Run folders whose requests have given attempts."""

import json

import pytest


@pytest.fixture
def folder_of(mixed, tmp_path):
    """A run folder of requests with these attempts, one every 100 ms; keywords change the scenario."""

    def of(*attempts, **scenario):
        run = mixed(duration_s=100.0)
        for number, attempt in enumerate(attempts):
            ended = attempt.get("ended", "ok")
            run.request(100 * number, [attempt], ended=ended, asked_output_tokens=200)
        folder = run.write(tmp_path / "run")
        tree = json.loads((folder / "run.json").read_text())
        tree["scenario"] |= scenario
        (folder / "run.json").write_text(json.dumps(tree))
        return folder

    return of
