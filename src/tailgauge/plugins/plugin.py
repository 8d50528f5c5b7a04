"""Plugins: loaded by file or by name, their rows given to the tables that want them, their errors named by file and line.

A plugin is a Python file, or what an installed package has under `[project.entry-points."tailgauge.plugins"]`. It has one or
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
_code: dict[str, str] = {}  # files, or folders of packages, with the plugin's file


def name_of(given: str) -> str:
    """The name of a plugin that is given by file or by name."""
    return Path(given).stem if given.endswith(".py") else given


def load(given: str, folder: Path = Path(), where: str = "--plugin") -> Plugin:
    """Load a plugin, once. A file lies in `folder` or here; UsageError, beginning with `where`, if it cannot be loaded.

    UsageError also where its code raises, with file and line.
    """
    had_pandas = "pandas" in sys.modules
    with _refusing(given):
        found = (
            _file(locate(given, folder, where)) if given.endswith(".py") else _package(given, where)
        )
    before = LOADED.get(found.name, found)
    if before.sha256 != found.sha256:
        raise UsageError(
            f"{where} {given}: another plugin is named {found.name!r}: rename one of them"
        )
    if found.name in LOADED:
        return before
    if not any(hasattr(found.rows, kind) for kind in KINDS):
        raise UsageError(
            f"{where} {given}: adds nothing: expected one or more of {', '.join(KINDS)}"
        )
    if "pandas" in sys.modules and not had_pandas:
        how = "import it inside metrics() and sections()"
        raise UsageError(f"{where} {given}: loads pandas, which a worker must not: {how}")
    for kind, add in _tables:
        _give(found, kind, add)
    LOADED[found.name] = found
    return found


def subscribe(kind: str, add: Callable[[Any], object]) -> None:
    """Give a table the rows of this kind, of plugins loaded before and after; `add` raises TypeError or ValueError for what is no row."""
    _tables.append((kind, add))
    for plugin in LOADED.values():
        _give(plugin, kind, add)


def needed(names: object, where: str) -> None:
    """Check that the plugins which a scenario names are loaded. UsageError naming the option that permits it."""
    for name in names if isinstance(names, list | tuple) else ():
        if isinstance(name, str) and name_of(name) not in LOADED:
            how = f"add --plugin {shlex.quote(name)}, or --allow-plugins to load what the scenario names"
            what = f"the scenario needs the plugin {name!r}, whose code runs here"
            raise UsageError(f"{where}: {what}: look at it, then {how}")


def sources() -> list[str]:
    """The files and names from which another process loads the same."""
    return [plugin.given for plugin in LOADED.values()]


def options() -> list[str]:
    """The options with which another process loads the same."""
    return [word for source in sources() for word in ("--plugin", source)]


def facts() -> list[dict[str, str]]:
    """What run.json says of them."""
    return [
        {"name": plugin.name, "file": plugin.file, "sha256": plugin.sha256, "given": plugin.given}
        for plugin in LOADED.values()
    ]


def hashes() -> dict[str, str]:
    """SHA-256 by name."""
    return {name: plugin.sha256 for name, plugin in LOADED.items()}


def difference(theirs: Any) -> str:
    """Why a worker with plugins of these hashes cannot work here; empty where it can."""
    for name, plugin in LOADED.items():
        found = theirs.get(name) if isinstance(theirs, Mapping) else None
        if found != plugin.sha256:
            has = f"another file as plugin {name!r}" if found else f"no plugin {name!r}"
            ours = f"{plugin.file} (SHA-256 {plugin.sha256[:SHOWN]})"
            return f"it has {has}; the master has {ours}: start it with --plugin and the same file"
    return ""


# --- errors ---------------------------------------------------------------------------------------------------------


class MisuseError(TypeError):
    """A plugin's code broke its interface; the text begins with file and line."""


def fault(error: BaseException) -> str:
    """`my.py, line 31: KeyError: 'x'`, of an error in a plugin's code; empty for others."""
    if isinstance(error, MisuseError | MemoryError):
        return str(error) if isinstance(error, MisuseError) else ""
    places = [
        (frame.f_code.co_filename, line) for frame, line in traceback.walk_tb(error.__traceback__)
    ]
    if isinstance(error, SyntaxError):
        places.append((error.filename or "", error.lineno or 0))
    shown = ((_shown(file), line) for file, line in reversed(places))
    return next((_text(name, line, error) for name, line in shown if name), "")


def blamed(code: Any, error: Exception) -> Exception:
    """An error in what a generator or a function did; of a plugin's, one whose fault names it, although it was raised here."""
    of = getattr(code, "gi_code", None) or getattr(code, "__code__", None)
    if (
        of is None
        or isinstance(error, MemoryError)
        or fault(error)
        or not (name := _shown(of.co_filename))
    ):
        return error
    frame = getattr(code, "gi_frame", None)
    return MisuseError(_text(name, frame.f_lineno if frame else of.co_firstlineno, error))


def _shown(file: str) -> str:
    """How the file of a plugin is named; empty for other code."""
    for code, name in _code.items():
        if file == code:
            return name
        if file.startswith(f"{code}/"):
            return file[len(code) + 1 :]
    return ""


def _text(name: str, line: int, error: BaseException) -> str:
    what = error.msg if isinstance(error, SyntaxError) else error
    return plain(known()(f"{name}, line {line}: {type(error).__name__}: {what}"), _LONGEST)


def failure(error: Exception) -> TailgaugeError:
    """An error in one line: as it is, of a plugin, of the machine, or a fault of ours."""
    if isinstance(error, TailgaugeError):
        return error
    text = fault(error)
    return UsageError(f"plugin {text}") if text else errors.failure(error)


class Faults:
    """What plugins did wrong in the requests of one worker, or in one report: by file, line and class the first of them."""

    def __init__(self) -> None:
        self.texts: dict[str, str] = {}

    def note(self, error: Exception, what: str = "") -> str:
        """Note an error in `what`; returns its text, which is empty for one that is no plugin's."""
        text = fault(error) or (what and plain(known()(repr(error)), _LONGEST))
        place = what + ": ".join(text.split(": ")[:2])
        if text and len(self.texts) < MAX_FAULTS and place not in self.texts:
            self.texts[place] = what + text
            log.warning("plugin %s", text)
        return text


NOTED = Faults()  # of reports made here


# --- loading --------------------------------------------------------------------------------------------------------


def _file(path: Path) -> Plugin:
    text = read_text(path, LARGEST_TOML)
    name = path.stem
    full = str(path.resolve())
    sha256 = hashlib.sha256(text.encode()).hexdigest()
    if name in LOADED and LOADED[name].sha256 == sha256:
        return LOADED[name]
    module = ModuleType(f"tailgauge_plugin_{name}")
    module.__file__ = full
    sys.modules[module.__name__] = module  # dataclasses and pydantic look for it
    _code[full] = path.name
    exec(compile(text, full, "exec"), module.__dict__)  # noqa: S102 - what the user asked for
    return Plugin(name, path.name, sha256, full, module)


def _package(name: str, where: str) -> Plugin:
    installed = {entry.name: entry for entry in entry_points(group=GROUP)}
    if name not in installed:
        others = (
            f"; installed: {', '.join(installed)}{nearest(name, installed)}" if installed else ""
        )
        why = f"no installed package has this plugin, and a file ends in .py{others}"
        raise UsageError(f"{where} {name}: {_other_kind(name, where) or why}")
    entry = installed[name]
    spec = importlib.util.find_spec(entry.module.partition(".")[0])
    if spec is None or spec.origin is None:
        raise UsageError(f"{where} {name}: its package has no module {entry.module}")
    origin = Path(spec.origin)
    root = origin.parent if spec.submodule_search_locations else origin
    sha256 = hashlib.sha256()
    for file in sorted(root.rglob("*.py")) if root != origin else [origin]:
        sha256.update(
            f"{file.relative_to(origin.parent).as_posix()}\0".encode() + file.read_bytes() + b"\0"
        )
    _code[str(root)] = entry.module
    return Plugin(name, entry.module, sha256.hexdigest(), name, entry.load())


def _other_kind(name: str, where: str) -> str:
    """What was given instead of a plugin, and what to give; empty where it may be a plugin's name."""
    path = Path(name)
    if path.suffix == ".toml":
        return f"this is a scenario, a plugin is a Python file: tailgauge run {shlex.quote(name)}"
    if path.is_dir():
        return f"a folder, not a file: give its Python file, as {where} {path / 'plugin.py'}"
    module = name.partition(":")[0]
    if re.fullmatch(r"\w+(?:\.\w+)+", module) or ":" in name:
        return f"give the file: {where} {module.replace('.', '/')}.py"
    return ""


def _give(plugin: Plugin, kind: str, add: Callable[[Any], object]) -> None:
    """Give a table the plugin's rows of a kind."""
    rows = getattr(plugin.rows, kind, ())
    with _refusing(f"{plugin.file}: {kind}"):
        for row in rows() if callable(rows) else rows:
            add(row)


@contextmanager
def _refusing(what: str) -> Iterator[None]:
    """What a plugin's code raises, or is refused for, as one line."""
    try:
        yield
    except TailgaugeError:
        raise
    except (Exception, SystemExit) as error:
        how = ""
        if isinstance(error, ModuleNotFoundError) and error.name:
            package = plain(error.name.partition(".")[0], 80)
            how = f": install {package} into the Python at {interpreter.path()}"
        raise UsageError(f"plugin {fault(error) or f'{what}: {error}'}{how}") from error
