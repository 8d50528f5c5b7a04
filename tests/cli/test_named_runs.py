"""A part of a run's name in place of its folder, and --open."""

from __future__ import annotations

import os
import webbrowser
from pathlib import Path

import pytest
from analysis.comparing.planted_curves import curve, written
from click.testing import CliRunner

from tailgauge.cli import browser
from tailgauge.cli.browser import open_pages
from tailgauge.cli.main import cli
from tailgauge.cli.options import named_run
from tailgauge.errors import UsageError

A = "20250301T101500Z-mix-0a1b"
B = "20250301T101500Z-mix-0a1c"
C = "20250302T101500Z-cached-0a1d"


@pytest.fixture
def out(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The folder with A and B below runs/, in another one C and a curve's report."""
    monkeypatch.chdir(tmp_path)
    experiment = "20250302T101500Z-curve-0a1e"
    for place in (
        f"runs/{A}",
        f"runs/{B}",
        f"out/runs/{C}",
        f"out/reports/{experiment}",
        f"my out/runs/{A}",
    ):
        Path(place).mkdir(parents=True)
    return Path("out")


@pytest.mark.parametrize(
    ("given", "folder"),
    [
        ("0a1b", f"runs/{A}"),
        (A, f"runs/{A}"),
        (A[:-1] + "c", f"runs/{B}"),
        ("20250302", f"out/runs/{C}"),
        ("cached", f"out/runs/{C}"),
        ("mix-0a1c", f"runs/{B}"),
        (f"runs/{A}", f"runs/{A}"),
        ("elsewhere/0a1b", "elsewhere/0a1b"),
        ("./0a1b", "0a1b"),
    ],
)
def test_a_part_of_a_name_means_the_run_that_has_it(out, given, folder):
    if given == "./0a1b":
        Path("0a1b").mkdir()
    assert named_run(Path(given), out) == Path(folder)


@pytest.mark.parametrize(
    ("place", "expected"),
    [
        (
            Path("out"),
            "`tailgauge runs --out out` lists the runs, the newest is 20250302T101500Z-curve-0a1e",
        ),
        (Path(), f"`tailgauge runs` lists the runs, the newest is {B}"),
        (Path("empty"), f"`tailgauge runs` lists the runs, the newest is {B}"),
        (Path("my out"), f"`tailgauge runs --out 'my out'` lists the runs, the newest is {A}"),
    ],
)
def test_a_name_that_no_run_has_is_answered_with_the_newest(out, place, expected):
    with pytest.raises(UsageError) as raised:
        named_run(Path("elsewhere"), place)
    assert str(raised.value) == f"elsewhere: no such run folder: {expected}"


def test_a_report_is_meant_where_no_run_is(out):
    assert (
        named_run(Path("curve"), out, of_reports=True)
        == out / "reports" / "20250302T101500Z-curve-0a1e"
    )


@pytest.mark.parametrize("given", ["ached", "0a1", "mi", "a1d", "T1015"])
def test_letters_within_a_word_mean_no_run(out, given):
    with pytest.raises(UsageError) as raised:
        named_run(Path(given), out)
    assert str(raised.value).startswith(f"{given}: no such run folder")


@pytest.mark.parametrize("given", ["mix", "20250301", "2025"])
def test_a_part_that_several_runs_have_lists_them(out, given):
    with pytest.raises(UsageError) as raised:
        named_run(Path(given), out)
    assert str(raised.value).startswith(f"{given}: ")
    assert f"{A}, {B}" in str(raised.value)


def test_an_experiment_has_no_run_folder(out):
    with pytest.raises(UsageError) as raised:
        named_run(Path("0a1e"), out)
    text = "0a1e: out/reports/20250302T101500Z-curve-0a1e has a report, but no run folder"
    assert str(raised.value) == text


@pytest.mark.slow
def test_report_and_baseline_take_a_part_of_a_name(write, tmp_path, monkeypatch):
    write(A, n=400, run_id=A)
    monkeypatch.chdir(tmp_path)

    done = CliRunner().invoke(cli, ["report", "0a1b", "--out", str(tmp_path / "x")])
    added = CliRunner().invoke(cli, ["baseline", "add", str(tmp_path / "kept"), "0a1b"])

    assert f"rows      runs/{A}" in done.output
    assert added.output.startswith("added ")


# --- the browser ----------------------------------------------------------------------------------------------------


def test_without_a_display_the_path_is_printed(monkeypatch, capsys):
    for name in browser.DISPLAYS:
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(browser.sys, "platform", "linux")

    open_pages(["reports/x/report.html"])

    text = "tailgauge: --open: no display here; the report is reports/x/report.html\n"
    assert capsys.readouterr().err == text


def test_a_report_in_object_storage_is_named(monkeypatch, capsys):
    monkeypatch.setattr(browser, "renamed", lambda _: "s3://bucket/reports/x/report.html")

    open_pages(["staged/report.html"])

    assert "the report is at s3://bucket/reports/x/report.html" in capsys.readouterr().err


def test_with_a_display_each_report_is_opened(monkeypatch, tmp_path):
    started = []
    monkeypatch.setenv("DISPLAY", ":0")
    monkeypatch.setattr(
        os, "posix_spawn", lambda _, command, *__, **___: started.append(command[-3:])
    )

    open_pages([str(tmp_path / "a b.html"), str(tmp_path / "c.html")])

    urls = [(tmp_path / name).as_uri() for name in ("a b.html", "c.html")]
    assert started == [["-m", webbrowser.__name__, url] for url in urls]


@pytest.mark.parametrize("kind", ["pairs", "curves", "baseline"])
def test_open_names_the_page_of_a_comparison(kind, write, tmp_path, monkeypatch):
    opened: list[str] = []
    monkeypatch.setattr("tailgauge.cli.main.open_pages", opened.extend)
    monkeypatch.chdir(tmp_path)
    options = ["--open", "--out", str(tmp_path / "out")]
    if kind == "curves":
        options += [
            str(written(curve(seed), tmp_path, run_id=f"2026-curve-{seed}")) for seed in (1, 2)
        ]
    elif kind == "pairs":
        options += [str(write(name, n=100, warmup_s=0.0, run_id=name)) for name in "ab"]
    else:
        CliRunner().invoke(
            cli, ["baseline", "add", "kept", str(write("a", n=100, warmup_s=0.0, run_id="a"))]
        )
        options += [str(write("b", n=100, warmup_s=0.0, run_id="b")), "--baseline", "kept"]
    done = CliRunner().invoke(cli, ["compare", *options])

    assert opened, (done.output, done.exception)
    (page,) = map(Path, opened)
    assert (page.name, page.is_file(), page.parent.parent) == (
        "report.html",
        True,
        tmp_path / "out" / "reports",
    )
    assert page.parent.name.rpartition("-")[0].endswith("-compare") or kind == "baseline", (
        done.output
    )


def test_every_command_that_writes_a_report_takes_open():
    writing = {}
    for name, command in cli.commands.items():
        options = {option: parameter for parameter in command.params for option in parameter.opts}
        text = getattr(options.get("--out"), "help", "")
        if "report" in text and name != "runs":  # which lists them
            writing[name] = "--open" in options

    assert writing == dict.fromkeys(("run", "checkup", "compare", "report", "calibrate"), True)


@pytest.mark.slow
def test_open_names_the_report_of_a_dry_run(monkeypatch, tmp_path):
    opened: list[str] = []
    monkeypatch.setattr("tailgauge.cli.main.open_pages", opened.extend)

    line = "run quickstart --dry-run --duration 2s --open --json --out"
    CliRunner().invoke(cli, [*line.split(), str(tmp_path)])

    assert [Path(page).name for page in opened] == ["report.html"]
