"""The documentation pages equal what the tables say."""

from tailgauge.rows import schema
from tailgauge_analysis.report.pages import RUN_KEYS, data_format_page, history, metrics_page


def test_the_metrics_page_is_current(checkout):
    assert (checkout / "docs" / "metrics.md").read_text(encoding="utf-8") == metrics_page()


def test_the_data_format_page_is_current(checkout):
    assert (checkout / "docs" / "data-format.md").read_text(encoding="utf-8") == data_format_page()


def test_the_history_ends_with_the_present_version():
    assert int(history()[-1][0]) == schema.SCHEMA_VERSION


def test_every_key_of_run_json_is_documented(write):
    import json

    run = json.loads((write(n=10) / "run.json").read_text())

    assert set(run) == {name for name, _ in RUN_KEYS}


def test_every_metric_gate_and_column_stands_on_a_page():
    metrics, data = metrics_page(), data_format_page()
    from tailgauge_analysis.metrics.metrics import METRICS
    from tailgauge_analysis.verdict.checks import GATES

    assert [m.name for m in METRICS if f"### `{m.name}`" not in metrics] == []
    assert [g.name for g in GATES if f"| `{g.name}` |" not in metrics] == []
    columns = {c.name for table in schema.TABLES for c in schema.columns(table)}
    assert [name for name in columns if f"| `{name}` |" not in data] == []
