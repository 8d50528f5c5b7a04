"""How the harness itself asks a target for a page: straight, past any proxy, trusting the authority that the user named."""

from __future__ import annotations

import ssl
import urllib.request


def straight(authority: str | None, *more: urllib.request.BaseHandler) -> urllib.request.OpenerDirector:
    """An opener; `authority` is a PEM file, None for those of the system. Raises OSError where that file is none."""
    handlers: list[urllib.request.BaseHandler] = [urllib.request.ProxyHandler({}), *more]
    if authority is not None:
        context = ssl.create_default_context(cafile=authority)
        handlers.append(urllib.request.HTTPSHandler(context=context))
    return urllib.request.build_opener(*handlers)
