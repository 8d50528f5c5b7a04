"""Plugins: loaded by file or by name, their rows added to the tables of each kind, their errors named by file and line.

A plugin is a Python file, or an entry of an installed package under `[project.entry-points."tailgauge.plugins"]`. It has one or
more of these:

    PATTERNS = [...]            classes, as patterns/pattern.py describes them
    PROMPT_SOURCES = [...]      classes, see prompts/source.py
    PROTOCOLS = [...]           classes, see protocols/protocol.py
    OBJECTIVES = [...]          names of its metrics, in ms, that objectives may bound
    def metrics(): return [...]     rows of metrics/metrics.py of the analysis
    def sections(): return [...]    functions from a Run to a Section or None

The two functions are called only where a report is made, so that they import the analysis and a worker does not.
Nothing is loaded that the user did not permit on the command line, and code is never sent: a worker loads its own copy.
"""

from __future__ import annotations

import hashlib
import importlib.util
import logging
import re
import shlex
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from importlib.metadata import entry_points
from pathlib import Path
from types import ModuleType
from typing import Any

from tailgauge import errors, interpreter
from tailgauge.errors import TailgaugeError, UsageError
from tailgauge.redaction import known
from tailgauge.rows.text_file import LARGEST_TOML, locate, read_text
from tailgauge.sanitize import plain
from tailgauge.suggestions import nearest

log = logging.getLogger("tailgauge")
GROUP = "tailgauge.plugins"  # of entry points
PATTERNS = "PATTERNS"
PROMPT_SOURCES = "PROMPT_SOURCES"
PROTOCOLS = "PROTOCOLS"
OBJECTIVES = "OBJECTIVES"
METRICS = "metrics"
SECTIONS = "sections"
KINDS = (PATTERNS, PROMPT_SOURCES, PROTOCOLS, OBJECTIVES, METRICS, SECTIONS)
SHOWN = 12  # characters of a hash
MAX_FAULTS = 10  # of one worker that are kept
_LONGEST = 300  # characters of a fault


@dataclass(frozen=True, slots=True)
class Plugin:
    """A loaded plugin. `file` is a file's name or a package's module, without its folder; `given` loads it in another process."""

    name: str
    file: str
    sha256: str
    given: str
    rows: Any


LOADED: dict[str, Plugin] = {}
_tables: list[tuple[str, Callable[[Any], object]]] = []
_pandas_loaders: set[str] = set()  # hashes of plugins that have imported pandas here
_plugin_by_code: dict[str, str] = {}  # files, or folders of packages, with the plugin's file


def name_of(source: str) -> str:
    """Return the name of a plugin that is given by file or by name."""
    if source.endswith(".py"):
        return Path(source).stem
    return source


def load(source: str, folder: Path = Path(), where: str = "--plugin") -> Plugin:
    """Load a plugin, whose code runs once, and add its rows to the tables of each kind. Return it.

    `source`: a file, in `folder` or in the current folder, or the name of an installed one. UsageError, beginning with `where`, if it
    cannot be loaded, adds nothing, loads pandas, or has the name of another one. Where its code raises, the error begins
    with file and line.
    """
    had_pandas = "pandas" in sys.modules
    with _refuse_errors(source):
        if source.endswith(".py"):
            plugin = _load_file(locate(source, folder, where))
        else:
            plugin = _load_package(source, where)
    name = plugin.name
    if "pandas" in sys.modules and not had_pandas:
        _pandas_loaders.add(plugin.sha256)
    if name in LOADED and LOADED[name].sha256 != plugin.sha256:
        problem = f"another plugin is named {name!r}: rename one of them"
        if LOADED[name].given == plugin.given:
            problem = "it has changed since this process loaded it: start again"
        raise UsageError(f"{where} {source}: {problem}")
    # Its code did not run again.
    if name in LOADED:
        return LOADED[name]
    if not any(hasattr(plugin.rows, kind) for kind in KINDS):
        raise UsageError(
            f"{where} {source}: adds nothing: expected one or more of {', '.join(KINDS)}"
        )
    if plugin.sha256 in _pandas_loaders:
        hint = "import it inside metrics() and sections()"
        raise UsageError(f"{where} {source}: loads pandas, which a worker must not: {hint}")
    for kind, add in _tables:
        _add_rows(plugin, kind, add)
    LOADED[name] = plugin
    return plugin


def subscribe(kind: str, add: Callable[[Any], object]) -> None:
    """Add the rows of this kind to a table, of plugins loaded before and after.

    `add` takes a row; it raises TypeError or ValueError for anything else.
    """
    _tables.append((kind, add))
    for plugin in LOADED.values():
        _add_rows(plugin, kind, add)


def needed(names: object, where: str) -> None:
    """Check that the plugins which a scenario names are loaded; UsageError with the options that load the others.

    Every command that reads a scenario takes these options, but not every one has --allow-plugins.
    """
    if not isinstance(names, list | tuple):
        return
    missing = [name for name in names if isinstance(name, str) and name_of(name) not in LOADED]
    if missing:
        names_text = ", ".join(map(repr, missing))
        options = shlex.join(argument for name in missing for argument in ("--plugin", name))
        problem = f"the scenario lists plugins, whose code runs on this machine: {names_text}"
        raise UsageError(f"{where}: {problem}: check the code, then add {options}")


def sources() -> list[str]:
    """Return the files and names from which another process loads the same."""
    return [plugin.given for plugin in LOADED.values()]


def options() -> list[str]:
    """Return the options with which another process loads the same."""
    arguments = []
    for source in sources():
        arguments += ["--plugin", source]
    return arguments


def facts() -> list[dict[str, str]]:
    """Return the entries in run.json."""
    entries = []
    for plugin in LOADED.values():
        entries.append(
            {
                "name": plugin.name,
                "file": plugin.file,
                "sha256": plugin.sha256,
                "given": plugin.given,
            }
        )
    return entries


def hashes() -> dict[str, str]:
    """Return the SHA-256 of each plugin by name."""
    return {name: plugin.sha256 for name, plugin in LOADED.items()}


def difference(worker_hashes: Any) -> str:
    """Return why a worker with plugins of these hashes cannot work here; empty where it can."""
    if not isinstance(worker_hashes, Mapping):
        worker_hashes = {}
    for name, plugin in LOADED.items():
        sha256 = worker_hashes.get(name)
        if sha256 != plugin.sha256:
            worker = f"another file as plugin {name!r}" if sha256 else f"no plugin {name!r}"
            master = f"{plugin.file} (SHA-256 {plugin.sha256[:SHOWN]})"
            return f"it has {worker}; the master has {master}: start it with --plugin and the same file"
    return ""


# --- errors ---------------------------------------------------------------------------------------------------------


class MisuseError(TypeError):
    """A plugin's code broke its interface; the text begins with file and line."""


def fault(error: BaseException) -> str:
    """Return `my.py, line 31: KeyError: 'x'` of an error in a plugin's code; empty for others."""
    if isinstance(error, MisuseError):
        return str(error)
    if isinstance(error, MemoryError):
        return ""
    places = []
    for frame, line in traceback.walk_tb(error.__traceback__):
        places.append((frame.f_code.co_filename, line))
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    for file, line in reversed(places):
        name = _plugin_file(file)
        if name:
            return _text(name, line, error)
    return ""


def blamed(code: Any, error: Exception) -> Exception:
    """Return the error of a generator or a function; of a plugin's, one whose fault names it, although it was raised here."""
    body = getattr(code, "gi_code", None) or getattr(code, "__code__", None)
    if body is None or isinstance(error, MemoryError) or fault(error):
        return error
    name = _plugin_file(body.co_filename)
    if not name:
        return error
    frame = getattr(code, "gi_frame", None)
    line = frame.f_lineno if frame else body.co_firstlineno
    return MisuseError(_text(name, line, error))


def _plugin_file(file: str) -> str:
    """Return how the file of a plugin is named; empty for other code."""
    for code, name in _plugin_by_code.items():
        if file == code:
            return name
        if file.startswith(f"{code}/"):
            return file[len(code) + 1 :]
    return ""


def _text(name: str, line: int, error: BaseException) -> str:
    message = error.msg if isinstance(error, SyntaxError) else error
    return plain(known()(f"{name}, line {line}: {type(error).__name__}: {message}"), _LONGEST)


def failure(error: Exception) -> TailgaugeError:
    """Return an error in one line: as it is, of a plugin, of the machine, or a fault of ours."""
    if isinstance(error, TailgaugeError):
        return error
    text = fault(error)
    if text:
        return UsageError(f"plugin {text}")
    return errors.failure(error)


class Faults:
    """The errors of plugins in the requests of one worker, or in one report: by file, line and class the first of them."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def note(self, error: Exception, context: str = "") -> str:
        """Note an error. Return its text, which is empty for one that is no plugin's.

        With a `context`, such as a metric that a plugin added, any error is the plugin's.
        """
        text = fault(error)
        if not text and context:
            text = plain(known()(repr(error)), _LONGEST)
        place = context + ": ".join(text.split(": ")[:2])
        if text and len(self.texts) < MAX_FAULTS and place not in self.texts:
            self.texts[place] = context + text
            log.warning("plugin %s", text)
        return text


NOTED = Faults()  # of reports made here


# --- loading --------------------------------------------------------------------------------------------------------


def _load_file(path: Path) -> Plugin:
    """Execute a plugin's file, unless the same one is loaded already."""
    text = read_text(path, LARGEST_TOML)
    name = path.stem
    full_path = str(path.resolve())
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    if name in LOADED and LOADED[name].sha256 == sha256:
        return LOADED[name]
    module = ModuleType(f"tailgauge_plugin_{name}")
    module.__file__ = full_path
    sys.modules[module.__name__] = module  # dataclasses and pydantic look for it
    _plugin_by_code[full_path] = path.name
    exec(compile(text, full_path, "exec"), module.__dict__)  # noqa: S102 - what the user asked for
    return Plugin(name, path.name, sha256, full_path, module)


def _load_package(name: str, where: str) -> Plugin:
    """Execute a plugin of an installed package by its name. UsageError where no package has it.

    Its hash is over all Python files of the package, by which master and workers compare theirs. From now on errors in
    these files are blamed on the plugin.
    """
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        problem = "no installed package has this plugin, and a file ends in .py"
        if installed:
            problem += f"; installed: {', '.join(installed)}{nearest(name, installed)}"
        raise UsageError(f"{where} {name}: {_misuse_hint(name, where) or problem}")
    entry = installed[name]
    spec = importlib.util.find_spec(entry.module.partition(".")[0])
    if spec is None or spec.origin is None:
        raise UsageError(f"{where} {name}: its package has no module {entry.module}")
    origin = Path(spec.origin)
    root = origin
    files = [origin]
    if spec.submodule_search_locations:
        root = origin.parent
        files = sorted(root.rglob("*.py"))
    sha256 = hashlib.sha256()
    for file in files:
        path = file.relative_to(origin.parent).as_posix()
        sha256.update(f"{path}\0".encode() + file.read_bytes() + b"\0")
    # So that `fault` blames it, also for what happens while it is loaded.
    _plugin_by_code[str(root)] = entry.module
    return Plugin(
        name=name,
        file=entry.module,
        sha256=sha256.hexdigest(),
        given=name,
        rows=entry.load(),
    )


def _misuse_hint(name: str, where: str) -> str:
    """Return what was given instead of a plugin, and what to give; empty where it may be a plugin's name."""
    path = Path(name)
    if path.suffix == ".toml":
        return f"this is a scenario, a plugin is a Python file: tailgauge run {shlex.quote(name)}"
    if path.is_dir():
        return f"a folder, not a file: give its Python file, as {where} {path / 'plugin.py'}"
    module = name.partition(":")[0]
    if re.fullmatch(r"\w+(?:\.\w+)+", module) or ":" in name:
        return f"give the file: {where} {module.replace('.', '/')}.py"
    return ""


def _add_rows(plugin: Plugin, kind: str, add: Callable[[Any], object]) -> None:
    """Add the plugin's rows of a kind to a table."""
    rows = getattr(plugin.rows, kind, ())
    with _refuse_errors(f"{plugin.file}: {kind}"):
        if callable(rows):
            rows = rows()
        for row in rows:
            add(row)


@contextmanager
def _refuse_errors(context: str) -> Iterator[None]:
    """Raise what a plugin's code raises, or is refused for, as a UsageError of one line."""
    try:
        yield
    except TailgaugeError:
        raise
    except (Exception, SystemExit) as error:
        text = fault(error) or f"{context}: {error}"
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = plain(error.name.partition(".")[0], 80)
            text += f": install {package} into the Python at {interpreter.path()}"
        raise UsageError(f"plugin {text}") from error
