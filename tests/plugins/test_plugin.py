"""Loading of plugins: files and packages, hashes, and the message about one that cannot be used."""

from __future__ import annotations

import os
import re
import shutil
import sys

import pytest
from click.testing import CliRunner
from plugins.documented import PLUGIN, example

from tailgauge.cli.main import cli
from tailgauge.errors import UsageError
from tailgauge.plugins import plugin


@pytest.fixture
def forgotten():
    """Plugins that a test loads here are forgotten."""
    before = dict(plugin.LOADED)
    yield
    plugin.LOADED.clear()
    plugin.LOADED.update(before)


BROKEN = {
    "syntax.py": ("PATTERNS = []\n1 +\n", "plugin syntax.py, line 2: SyntaxError: invalid syntax"),
    "error.py": ("import json\n\njson.loads('{')\n", "plugin error.py, line 3: JSONDecodeError"),
    "exits.py": ("raise SystemExit(0)\n", "plugin exits.py, line 1: SystemExit"),
    "missing.py": ("import no_such_module\n", "plugin missing.py, line 1: ModuleNotFoundError"),
    "empty.py": ("x = 1\n", "adds nothing: expected one or more of PATTERNS, PROMPT_SOURCES"),
    "wrong.py": (
        "PATTERNS = [3]\n",
        "plugin wrong.py: PATTERNS: expected subclasses of Pattern, got 3",
    ),
    "many.py": ("PATTERNS = 3\n", "plugin many.py: PATTERNS: 'int' object is not iterable"),
    "partial.py": (
        "from tailgauge.patterns.pattern import Pattern\nclass A(Pattern):\n  name = 'a'\nPATTERNS = [A]\n",
        "plugin partial.py: PATTERNS: A: lacks steps, summary",
    ),
    "taken.py": (
        "from tailgauge.patterns.streaming import Streaming\nclass A(Streaming): pass\nPATTERNS = [A]\n",
        "plugin taken.py: PATTERNS: A: the name 'streaming' is taken: choose another",
    ),
    "key.py": (
        (
            "from tailgauge.patterns.streaming import Streaming\nfrom tailgauge.table import Table\n"
            "class A(Streaming):\n  name = 'retry'\n  settings_type = Table\nPATTERNS = [A]\n"
        ),
        "plugin key.py: PATTERNS: pattern 'retry': its table would replace the key 'retry'",
    ),
    "capital.py": (
        "from tailgauge.patterns.streaming import Streaming\nclass A(Streaming): name = 'A b'\nPATTERNS = [A]\n",
        "A: expected a name of lower-case letters, digits and _, got 'A b'",
    ),
    "uses.py": (
        (
            "from tailgauge.patterns.streaming import Streaming\n"
            "class A(Streaming):\n  name = 'uses_x'\n  uses = frozenset({'x'})\nPATTERNS = [A]\n"
        ),
        "A.uses: expected some of ",
    ),
    "protocol.py": (
        "PROTOCOLS = [dict]\n",
        "expected subclasses of WireProtocol, got <class 'dict'>",
    ),
    "objective.py": (
        "OBJECTIVES = ['ttft']\n",
        "expected names of metrics that are not taken, got 'ttft'",
    ),
    "called.py": (
        "def PROMPT_SOURCES():\n  return [1 / 0]\n",
        "plugin called.py, line 2: ZeroDivisionError",
    ),
}


@pytest.mark.parametrize("name", BROKEN)
def test_a_plugin_that_cannot_be_used_is_refused(tmp_path, name, forgotten):
    from tailgauge.scenario.model import Scenario  # the tables

    code, expected = BROKEN[name]
    (tmp_path / name).write_text(code, encoding="utf-8")

    with pytest.raises(UsageError) as refused:
        plugin.load(str(tmp_path / name))

    assert expected in str(refused.value)
    assert plugin.name_of(name) not in plugin.LOADED
    assert Scenario.model_validate({"name": "as-before"}).traffic["main"].pattern == "streaming"


def test_a_missing_file_and_an_unknown_name_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"--plugin: .*gone\.py: no such file"):
        plugin.load(str(tmp_path / "gone.py"))
    with pytest.raises(UsageError, match="--plugin gone: no installed package has this plugin"):
        plugin.load("gone")


def test_a_plugin_is_loaded_once_and_two_of_one_name_are_refused(tmp_path, forgotten):
    for folder in ("a", "b", "c"):
        (tmp_path / folder).mkdir()
        (tmp_path / folder / "again.py").write_text("PATTERNS = []\n", encoding="utf-8")
    (tmp_path / "c/again.py").write_text("PATTERNS = []  # another\n", encoding="utf-8")

    first = plugin.load(str(tmp_path / "a/again.py"))

    assert plugin.load(str(tmp_path / "b/again.py")) is first
    with pytest.raises(UsageError, match="another plugin is named 'again'"):
        plugin.load(str(tmp_path / "c/again.py"))


def test_a_plugin_that_changed_since_it_was_loaded_is_named_as_changed(tmp_path, forgotten):
    file = tmp_path / "edited.py"
    file.write_text("PATTERNS = []\n", encoding="utf-8")
    plugin.load(str(file))
    file.write_text("PATTERNS = []  # edited\n", encoding="utf-8")

    with pytest.raises(
        UsageError, match="it has changed since this process loaded it: start again"
    ):
        plugin.load(str(file))


@pytest.mark.parametrize("name", ["run", "checkup"])
def test_the_options_that_load_missing_plugins_are_those_of_the_command(tmp_path, name, forgotten):
    (tmp_path / "given.py").write_text("OBJECTIVES = []\n", encoding="utf-8")
    scenario = tmp_path / "desk.toml"
    scenario.write_text(
        'plugins = ["given.py", "a.py", "b c.py"]\n[traffic.chat]\n', encoding="utf-8"
    )
    plugin.load("given.py", tmp_path)

    done = CliRunner().invoke(cli, [name, str(scenario), "--dry-run"])

    text = str(done.exception)
    assert text.startswith(f"{scenario}: plugins: the scenario lists plugins")
    assert text.endswith(
        "'a.py', 'b c.py': check the code, then add --plugin a.py --plugin 'b c.py'"
    )
    options = {option for param in cli.commands[name].params for option in param.opts}
    assert set(re.findall("--[a-z-]+", text)) <= options


def test_another_hash_or_none_is_a_reason_to_refuse_a_worker(tmp_path, forgotten):
    (tmp_path / "known.py").write_text("PATTERNS = []\n", encoding="utf-8")
    plugin.load(str(tmp_path / "known.py"))
    same = plugin.hashes()

    assert plugin.difference(same) == plugin.difference({**same, "other": "0"}) == ""
    assert "it has no plugin 'known'; the master has known.py (SHA-256 " in plugin.difference({})
    assert "it has another file as plugin 'known'" in plugin.difference({"known": "0" * 64})
    for nonsense in (None, 3, [], "known"):
        assert "no plugin 'known'" in plugin.difference(nonsense)


def test_an_installed_package_is_loaded_by_name_and_its_hash_is_of_all_its_files(command, tmp_path):
    """As an installer leaves it: a package and its entry points on the path."""
    package, info = tmp_path / "acme_load", tmp_path / "acme_load-1.0.dist-info"
    package.mkdir()
    info.mkdir()
    (info / "METADATA").write_text("Metadata-Version: 2.1\nName: acme-load\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text("[tailgauge.plugins]\ndesk = acme_load.desk\n")
    (package / "__init__.py").write_text("")
    (package / "other.py").write_text("1 / 0\n")
    shutil.copy(example(tmp_path / "user").with_name(PLUGIN), package / "desk.py")
    code = (
        "from tailgauge.plugins import plugin; from tailgauge.patterns.table import PATTERNS;"
        "plugin.load('desk'); print(*plugin.facts()[0].values(), *plugin.options(), 'follow_up' in PATTERNS)"
    )
    path = os.pathsep.join([str(tmp_path), os.environ.get("PYTHONPATH", "")])

    def loaded() -> list[str]:
        done = command(["python", "-c", code], env={"PYTHONPATH": path})
        return done.stdout.split() or [done.stderr]

    name, module, first, *others = loaded()
    assert [name, module, *others] == ["desk", "acme_load.desk", "desk", "--plugin", "desk", "True"]
    (package / "other.py").write_text("0 / 1\n")
    assert loaded()[2] != first
    (package / "desk.py").write_text(
        "import acme_load.other\nfrom acme_load.other import nothing\n"
    )
    assert "plugin desk.py, line 2: ImportError" in loaded()[-1]


def test_a_plugin_that_loads_pandas_is_refused_each_time(tmp_path, forgotten, monkeypatch):
    code = "import sys\nsys.modules['pandas'] = sys\nPATTERNS = []\n"
    (tmp_path / "heavy.py").write_text(code, encoding="utf-8")
    # Undone after the test: pandas itself may be loaded.
    monkeypatch.setitem(sys.modules, "pandas", None)
    monkeypatch.delitem(sys.modules, "pandas")
    for _ in range(2):
        with pytest.raises(UsageError, match="loads pandas, which a worker must not"):
            plugin.load(str(tmp_path / "heavy.py"))


def test_a_plugin_that_loads_pandas_is_refused(command, tmp_path):
    (tmp_path / "heavy.py").write_text("import pandas\nPATTERNS = []\n", encoding="utf-8")
    refused = command(
        ["tailgauge", "worker", "--master", "127.0.0.1:1", "--plugin", tmp_path / "heavy.py"]
    )

    assert refused.returncode == 2
    assert (
        "loads pandas, which a worker must not: import it inside metrics() and sections()"
        in refused.stderr
    )
