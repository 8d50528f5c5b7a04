"""A real nginx in front of an endpoint."""

from __future__ import annotations

import contextlib
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from starting.command import free_port

NGINX = shutil.which("nginx") or shutil.which("nginx", path="/usr/sbin")
needs_nginx = pytest.mark.skipif(
    NGINX is None, reason="nginx is not installed (Debian: apt install nginx-light)"
)

# As Debian ships it but for the size of its buffers, 4k, and for heeding the endpoint's own wish. 64k hold a whole answer.
# It speaks HTTP/1.0 to the endpoint, as nginx does unless configured otherwise: chunks of HTTP/1.1 it would pass on as they come.
CONFIG = """
daemon off; master_process off; pid nginx.pid; error_log error.log;
events {{ worker_connections 256; }}
http {{
  access_log off; gzip off;
  client_body_temp_path body; proxy_temp_path proxy; fastcgi_temp_path f; uwsgi_temp_path u; scgi_temp_path s;
  proxy_ignore_headers X-Accel-Buffering;
  proxy_buffering {buffering}; proxy_buffer_size {size}; proxy_buffers 8 {size};
  server {{ listen 127.0.0.1:{port}; location / {{ proxy_pass {url}; }} }}
}}
"""


def listens(port: int) -> bool:
    with socket.socket() as trying:
        return trying.connect_ex(("127.0.0.1", port)) == 0


@contextlib.contextmanager
def proxy(folder: Path, url: str, buffering: str, size: str) -> Iterator[str]:
    """Address of a real nginx before an endpoint."""
    folder.mkdir()
    port = free_port()
    (folder / "nginx.conf").write_text(
        CONFIG.format(port=port, url=url, buffering=buffering, size=size)
    )
    files = ("-c", str(folder / "nginx.conf"), "-e", str(folder / "error.log"))
    child = subprocess.Popen([str(NGINX), "-p", str(folder), *files], stderr=subprocess.DEVNULL)
    try:
        deadline = time.monotonic() + 10
        while not listens(port) and time.monotonic() < deadline:
            assert child.poll() is None, (folder / "error.log").read_text()
            time.sleep(0.05)
        yield f"http://127.0.0.1:{port}"
    finally:
        child.terminate()
        child.wait(10)
