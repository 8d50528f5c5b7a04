"""LiteLLM's proxy, in a process and an environment of its own, in front of simulated endpoints.

It listens on 127.0.0.1, has no database, and calls nobody but its backends: whatever else it calls by HTTP goes to
`strangers`, which counts it.
"""

from __future__ import annotations

import contextlib
import json
import os
import secrets
import signal
import socket
import subprocess
import threading
import time
import urllib.request
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import pytest
from starting.command import free_port

VARIABLE = "TAILGAUGE_LITELLM"
KEY_VARIABLE = "TAILGAUGE_GATEWAY_KEY"
START_S = 120
# The kinds of backend: LiteLLM's name of a model there, and the path of its API.
BACKENDS = {"openai": ("openai/tiny", "/v1"), "anthropic": ("anthropic/claude-sonnet-4-5", "")}
SETTINGS = {
    "litellm_settings": {
        "telemetry": False,
        "num_retries": 0,
        "drop_params": True,
        # Messages in front of an OpenAI-compatible engine become chat completions, not responses.
        "use_chat_completions_url_for_anthropic_messages": True,
    },
    "router_settings": {"num_retries": 0, "disable_cooldowns": True},
    # The id of a call reaches the endpoint: its log is joined by it.
    "general_settings": {"forward_client_headers_to_llm_api": True},
}
OFFLINE = {
    "LITELLM_MODE": "PRODUCTION",  # no .env file is read
    "LITELLM_LOCAL_MODEL_COST_MAP": "True",
    "LITELLM_LOCAL_ANTHROPIC_BETA_HEADERS": "True",
    "LITELLM_LOCAL_AUTOROUTER_PRESETS": "True",
    "LITELLM_LOCAL_BLOG_POSTS": "True",
    "LITELLM_LOCAL_POLICY_TEMPLATES": "True",
    "DISABLE_ADMIN_UI": "True",
    "PYTHONDONTWRITEBYTECODE": "1",
}


@dataclass(frozen=True)
class LiteLLM:
    """A running proxy."""

    url: str
    key: str
    log: Path
    strangers: list[bytes]  # what it sent to anybody but its backends


@dataclass
class Strangers:
    """A proxy for HTTP that answers nothing and keeps what it was sent."""

    calls: list[bytes] = field(default_factory=list)

    @contextlib.contextmanager
    def listening(self) -> Iterator[str]:
        with socket.create_server(("127.0.0.1", 0)) as server:
            threading.Thread(target=self._accept, args=(server,), daemon=True).start()
            yield f"http://127.0.0.1:{server.getsockname()[1]}"

    def _accept(self, server: socket.socket) -> None:
        with contextlib.suppress(OSError):  # the test is over
            while True:
                client, _ = server.accept()
                with client:
                    client.settimeout(5)
                    self.calls.append(client.recv(4096))


def program() -> str:
    """Return LiteLLM's program; skip the test where there is none."""
    path = os.environ.get(VARIABLE)
    if not path:
        pytest.skip(f"{VARIABLE} is not set: `make gateways` installs LiteLLM and sets it")
    return path


@contextlib.contextmanager
def serving(folder: Path, endpoints: Mapping[str, str]) -> Iterator[LiteLLM]:
    """Serve models NAME-KIND for each endpoint NAME and kind of backend."""
    config = folder / "config.json"
    config.write_text(json.dumps({"model_list": _models(endpoints), **SETTINGS}))
    port = free_port()
    key = f"sk-{secrets.token_hex(32)}"
    strangers = Strangers()
    log = folder / "litellm.log"
    with strangers.listening() as proxy:
        env = {
            **OFFLINE,
            "PATH": os.environ["PATH"],
            "HOME": str(folder),
            "LITELLM_MASTER_KEY": key,
            **dict.fromkeys(("HTTP_PROXY", "HTTPS_PROXY", "http_proxy", "https_proxy"), proxy),
            **dict.fromkeys(("NO_PROXY", "no_proxy"), "127.0.0.1"),
            "AIOHTTP_TRUST_ENV": "True",
        }
        line = [
            program(),
            "--config",
            config,
            "--host",
            "127.0.0.1",
            "--port",
            str(port),
            "--telemetry",
            "False",
        ]
        with log.open("wb") as output, _process(line, env, folder, output) as process:
            url = f"http://127.0.0.1:{port}"
            _wait_for_start(process, url, log)
            yield LiteLLM(url=url, key=key, log=log, strangers=strangers.calls)


def _models(endpoints: Mapping[str, str]) -> list[dict[str, object]]:
    models: list[dict[str, object]] = []
    for name, url in endpoints.items():
        for kind, (model, path) in BACKENDS.items():
            parameters = {"model": model, "api_base": url + path, "api_key": "unused"}
            models.append({"model_name": f"{name}-{kind}", "litellm_params": parameters})
    return models


@contextlib.contextmanager
def _process(
    line: Sequence[str | Path], env: Mapping[str, str], folder: Path, output: object
) -> Iterator[subprocess.Popen[bytes]]:
    process = subprocess.Popen(
        line,
        env=env,
        cwd=folder,
        stdin=subprocess.DEVNULL,
        stdout=output,  # type: ignore[arg-type]
        stderr=subprocess.STDOUT,
        start_new_session=True,
    )
    try:
        yield process
    finally:
        process.terminate()
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(10)
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait(10)


def _wait_for_start(process: subprocess.Popen[bytes], url: str, log: Path) -> None:
    deadline = time.monotonic() + START_S
    while time.monotonic() < deadline and process.poll() is None:
        try:
            urllib.request.urlopen(f"{url}/health/liveliness", timeout=5).close()
        except OSError:
            time.sleep(0.3)
        else:
            return
    pytest.fail(f"LiteLLM did not start: {log.read_text(errors='replace')[-3000:]}")
