"""The live view on Locust's web page: a tab with its own page, the data of that page, and /metrics.

The run is sampled once a second, for any number of viewers, and never changed. The page is static; text of a target or
worker travels as JSON and is shown as text, and the content security policy allows no other script.
"""

from __future__ import annotations

import errno
import importlib.util
import ipaddress
import json
import re
import socket
from collections.abc import Callable, Collection, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import gevent
from flask import Blueprint, Response, abort, jsonify, request, send_file
from gevent.pool import Pool
from gevent.pywsgi import WSGIHandler, WSGIServer

from tailgauge.address import Address
from tailgauge.channel.supervisor import supervised
from tailgauge.clock import monotonic_ns
from tailgauge.errors import UsageError
from tailgauge.live.series import Live, RunView, chosen, document
from tailgauge.master.progress import Progress
from tailgauge.schedule.settings import TASKS

if TYPE_CHECKING:
    from tailgauge.master.run import Run
    from tailgauge.master.workers import RunWorker

PAGE = Path(__file__).with_name("page")
FILES = {"live.css": "text/css", "live.js": "text/javascript", "tab.js": "text/javascript"}
EMPTY = "'sha256-47DEQpj8HBSa+/TImW+5JCeuQeRkm5NMpJWZG3hSuFU='"  # Plotly adds an empty style element and fills it later
POLICY = (
    f"default-src 'none'; script-src 'self'; style-src 'self' {EMPTY}; connect-src 'self'; "
    "img-src 'self' data: blob:; base-uri 'none'; form-action 'none'; frame-ancestors 'self'"
)
LOCUST_PAGE = "locust.index"
NOTES_SHOWN = 20
LARGEST_BODY = 1 << 20  # bytes of a request: a start has a form of a few hundred
LONGEST_REQUEST_S = 60.0  # from one answer on a connection to the end of the next one
MOST_CONNECTIONS = 1_000
_HOST = re.compile(r"(\[[0-9a-f:.]+\]|[^\s:/@?#\[\]]+)(?::[0-9]+)?")
TAB = (
    b'<a href="./tailgauge" style="position:fixed;left:16px;bottom:12px;z-index:10;padding:5px 14px;border-radius:99px;'
    b'background:#15803d;color:#fff;font:14px sans-serif;text-decoration:none">Tailgauge live view</a>'
    b'<script src="./tailgauge/tab.js"></script>'
)


class _Handler(WSGIHandler):  # type: ignore[misc]  # gevent has no types here
    """Closes a connection whose request, however slow its bytes, has no answer in time."""

    def handle_one_request(self) -> Any:
        with gevent.Timeout(LONGEST_REQUEST_S, exception=False):
            return super().handle_one_request()
        return None


class Watcher:
    """Samples the master's run once a second: the current one, or the last."""

    def __init__(self, current_run: Callable[[], Run | None]) -> None:
        self._current_run = current_run
        self._run: Run | None = None
        self._over = False
        self._progress: Progress | None = None
        self.live = Live()

    def follow(self) -> None:
        """Sample forever at each full second of the run; counters of the workers arrive half a second apart from that."""
        while True:
            run = self._current_run()
            start_ns = (run.start_at_ns if run is not None else None) or 0
            gevent.sleep(1 - (monotonic_ns() - start_ns) % 1_000_000_000 / 1e9)
            self.sample()

    def sample(self) -> None:
        """Sample once. A run that is over is sampled one last time."""
        run = self._current_run()
        if run is None or (run is self._run and self._over):
            return
        if run is not self._run:
            self._run = run
            self.live = Live()
        self._over = run.over.is_set()
        self._progress = progress = run.snapshot()
        if run.start_at_ns is not None and progress.passed_s > 0:
            self.live.fold(progress)

    def view(self) -> RunView | None:
        """Return the last sampled run with the workers that the page shows."""
        if self._run is None or self._progress is None:
            return None
        workers = list(self._run.workers)
        places = chosen([(worker.state, _cpu(worker) or 0.0) for worker in workers])
        return _view(self._run, self._progress, [workers[i] for i in places], len(workers))

    def exposed(self, accept: str) -> tuple[bytes, str]:
        """Return the last sampled run with all workers, for a scrape that accepts these types."""
        from tailgauge.live.prometheus import exposed

        run = self._run
        progress = self._progress
        if run is None or progress is None:
            return exposed(None, accept)
        view = partial(_view, run, progress, list(run.workers), len(run.workers))
        # 20 ms of a thousand workers.
        answer: tuple[bytes, str] = gevent.get_hub().threadpool.apply(
            lambda: exposed(view(), accept)
        )
        return answer


def _view(run: Run, progress: Progress, workers: Sequence[RunWorker], total: int) -> RunView:
    now_ns = monotonic_ns()
    facts = {
        "run_id": run.run_id,
        "scenario": run.scenario.name,
        "scenario_file": run.settings.scenario_file,
        "targets": list(run.target_urls),
        "folder": str(run.folder.path),
        "state": _state(run),
        "notes": run.notes[-NOTES_SHOWN:],
        "begin": "requested" if run.scenario.arrival.process == TASKS else "scheduled",
    }
    return RunView(facts, progress, [_worker(worker, now_ns) for worker in workers], total)


def _state(run: Run) -> str:
    if run.over.is_set():
        return run.state
    if run.start_at_ns is None:
        return "preparing"
    return "draining" if run.admitted.is_set() else "running"


def _worker(worker: RunWorker, now_ns: int) -> dict[str, Any]:
    """Return one worker. `cpu` 1 = one core; `clock_error_ms` is None if its offset is unknown."""
    counters = worker.counters
    clock = None
    if not worker.has_drained:
        clock = counters.get("clock")
    error_ns = (clock or worker.record.get("clock") or {}).get("error_ns")
    clock_error_ms = None
    if error_ns is not None:
        clock_error_ms = error_ns / 1e6
    return {
        "worker": worker.number,
        "name": str(worker.hello["name"]),
        "host": str(worker.hello["host"]),
        "state": worker.state,
        "sent": worker.count("dispatched"),
        "in_flight": counters["in_flight"] if counters else 0,
        "cpu": _cpu(worker),
        "clock_error_ms": clock_error_ms,
        "silent_s": round((now_ns - worker.last_message_ns) / 1e9, 1),
    }


def _cpu(worker: RunWorker) -> float | None:
    """Cores in use; None before its first counters."""
    return worker.watch.get("cpu")


def serve(
    environment: Any, address: Address, run: Callable[[], Run | None], *, metrics: bool
) -> str:
    """Serve Locust's page with the tab for a run of `tailgauge run`; returns its address, or UsageError."""
    page = environment.create_web_ui(address.host, address.port, delayed_start=True)
    refusal = "`tailgauge run` starts its scenarios itself"
    attach(environment, run, metrics=metrics, host=address.host, refuses_start=lambda _: refusal)
    page.server = WSGIServer(
        (address.host.strip("[]"), address.port),
        page.app,
        log=None,
        spawn=Pool(MOST_CONNECTIONS),
        handler_class=_Handler,
    )
    try:
        page.server.start()
    except OSError as error:
        reason = error.strerror or str(error)
        if error.errno == errno.EADDRINUSE:
            reason = f"another program listens there: use another port, such as --web {_other_port(address.port)}"
        raise UsageError(f"--web {address}: cannot listen: {reason}") from error
    return f"http://{address.host}:{page.server.server_port}"


def _other_port(port: int) -> int:
    if port < 65535:
        return port + 1
    return port - 1


def _refuse_start(refuses: Callable[[str | None], str]) -> Response | None:
    if request.endpoint != "locust.swarm":
        return None
    refusal = refuses(request.form.get("host"))
    if not refusal:
        return None
    return jsonify({"success": False, "message": refusal})


def _guard(names: Collection[str]) -> Callable[[], tuple[str, int] | None]:
    """Refuse what a page of another site sends, under its own name too (DNS rebinding): `names` are ours.

    An address in `Host` is no name that somebody else could have pointed here. A browser names the site that a request
    to change something comes from; a program that sends no such header is not misused by one.
    """

    def guard() -> tuple[str, int] | None:
        host = request.headers.get("Host", "")
        if not _is_ours(host, names):
            return f"Host: expected an IP address, localhost or {' or '.join(sorted(names))}\n", 403
        origin = request.headers.get("Origin", f"//{host}").partition("//")[2]
        is_same = origin == host and request.headers.get("Sec-Fetch-Site", "none") in {
            "same-origin",
            "none",
        }
        if request.method not in {"GET", "HEAD"} and not is_same:
            return "a request from another site\n", 403
        return None

    return guard


def _is_ours(host: str, names: Collection[str]) -> bool:
    match = _HOST.fullmatch(host.lower())
    name = ""
    if match:
        name = match[1].strip("[]").rstrip(".")
    try:
        return name == "localhost" or name in names or bool(ipaddress.ip_address(name))
    except ValueError:
        return False


def attach(
    environment: Any,
    run: Callable[[], Run | None],
    *,
    metrics: bool,
    host: str,
    refuses_start: Callable[[str | None], str],
) -> None:
    """Add the tab and its pages to Locust's page at `host`, before its first answer, and begin to sample the run.

    Guards the whole page, Locust's parts too: requests of other sites are refused, and bodies are bounded. `run` returns
    the current run; `metrics`: also serve /metrics. `refuses_start`: why a start with the form's host is not possible; ""
    where it is.
    """
    watcher = Watcher(run)  # samples the run once a second, by the greenlet started below
    page = environment.web_ui
    base = getattr(environment.parsed_options, "web_base_path", None)
    pages = Blueprint("tailgauge", __name__, url_prefix=base)
    guarded = page.auth_required_if_enabled
    pages.add_url_rule("/tailgauge", "live", guarded(_live_page))
    pages.add_url_rule("/tailgauge/live.json", "figures", guarded(lambda: _figures(watcher)))
    pages.add_url_rule("/tailgauge/<name>", "file", guarded(_file))
    if metrics:
        pages.add_url_rule("/metrics", "metrics", guarded(lambda: _metrics(watcher)))
    pages.after_request(_headers)
    page.app.register_blueprint(pages)
    page.app.config["MAX_CONTENT_LENGTH"] = LARGEST_BODY
    names = {host.lower(), socket.gethostname().lower()} - {""}
    page.app.before_request(_guard(names))
    page.app.before_request(partial(_refuse_start, refuses_start))
    page.app.after_request(_add_tab)
    page.app.after_request(_forbid_other_sites)
    page.template_args["extended_tabs"] = [{"key": "tailgauge", "title": "Tailgauge"}]
    gevent.spawn(supervised(watcher.follow, "the live view cannot follow the run"))


def _live_page() -> Response:
    return send_file(PAGE / "live.html", mimetype="text/html", max_age=0)


def _file(name: str) -> Response:
    if name == "plotly.min.js":
        return send_file(_plotly(), mimetype="text/javascript", max_age=3600)
    if name not in FILES:
        abort(404)
    return send_file(PAGE / name, mimetype=FILES[name], max_age=0)


def _plotly() -> Path:
    """Return the plotly.js of the reports; importing their package would cost the master 100 MB."""
    spec = importlib.util.find_spec("tailgauge_analysis")
    assert spec is not None
    assert spec.submodule_search_locations is not None
    return Path(
        next(iter(spec.submodule_search_locations)), "report", "plotly", "plotly-cartesian.min.js"
    )


def _figures(watcher: Watcher) -> Response:
    """Points after `since`, or all if the page shows another run or finer steps."""
    live = watcher.live
    view = watcher.view()
    run_id = None
    if view:
        run_id = view.run["run_id"]
    is_same_run = request.args.get("run") == run_id and request.args.get("every") == str(
        live.every_s
    )
    since_s = -1.0
    if is_same_run:
        since_s = request.args.get("since", -1.0, float)
    body = json.dumps(document(view, live, since_s), separators=(",", ":"), allow_nan=False)
    return Response(body, mimetype="application/json", headers={"Cache-Control": "no-store"})


def _metrics(watcher: Watcher) -> Response:
    body, content_type = watcher.exposed(request.headers.get("Accept", ""))
    return Response(body, content_type=content_type)


def _headers(response: Response) -> Response:
    response.headers["Content-Security-Policy"] = POLICY
    response.headers["X-Content-Type-Options"] = "nosniff"
    response.headers["Referrer-Policy"] = "no-referrer"
    return response


def _forbid_other_sites(response: Response) -> Response:
    """Locust lets every site read its answers, unless an answer has this header already."""
    response.headers["Access-Control-Allow-Origin"] = request.host_url.rstrip("/")
    return response


def _add_tab(response: Response) -> Response:
    """Locust's page accepts another tab but no content for it: a script adds that."""
    if request.endpoint == LOCUST_PAGE and response.mimetype == "text/html":
        response.set_data(response.get_data().replace(b"</body>", TAB + b"</body>"))
    return response
