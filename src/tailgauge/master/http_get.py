"""HTTP GET of the harness itself: without any proxy, trusting the certificate authority of the scenario."""

from __future__ import annotations

import ssl
import urllib.request


def http_client(authority: str | None, *more: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """An opener; `authority` is a PEM file, None for the system's. Raises OSError if the file cannot be used."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), *more]
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)
