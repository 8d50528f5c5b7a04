"""API keys: which one a target gets.

A key comes from the environment. It goes to the provider's host over TLS, or to the target that names its variable in
`api_key_env`; for every other target, and for one whose `headers` authorize, it is a placeholder, which is not sent.
None reaches a row, a log or a message: see `redaction`.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from urllib.parse import urlsplit

from tailgauge.protocols.additions import from_environment, names_key
from tailgauge.protocols.protocol import PLACEHOLDER_KEY, TargetSettings
from tailgauge.protocols.protocol import at_provider as is_providers
from tailgauge.protocols.table import PROVIDERS


def at_provider(url: str, protocol: str) -> bool:
    """Return whether `url` is the host of the protocol's provider, over TLS. A protocol may have no provider."""
    return is_providers(url, PROVIDERS.get(protocol))


def key_for(url: str, protocol: str, named_variable: str | None) -> str:
    """Return the key to send to `url`. Raises TargetError naming the variable that is missing."""
    variable = named_variable
    host = urlsplit(url).hostname
    if variable is None and at_provider(url, protocol):
        variable = PROVIDERS[protocol].variable
    if variable is None:
        return PLACEHOLDER_KEY
    reason = f"{host} wants a key"
    if named_variable:
        reason = "target.api_key_env names it"
    return from_environment(variable, reason, "API key")


def key_of(target: TargetSettings, url: str) -> str:
    """Return the key to send to a target that is really at `url`; the placeholder where its headers authorize instead."""
    if target.api_key_env is None and names_key(target.headers):
        return PLACEHOLDER_KEY
    return key_for(url, target.protocol, target.api_key_env)


@contextmanager
def without_keys_for_others(url: str, protocol: str) -> Iterator[None]:
    """Hide the variables of the environment that an SDK would send to any host, while its client is built.

    At the provider itself nothing is hidden.
    """
    provider = PROVIDERS.get(protocol)
    names: tuple[str, ...] = ()
    if provider is not None and not at_provider(url, protocol):
        names = provider.also_read
    saved = {name: os.environ.pop(name) for name in names if name in os.environ}
    try:
        yield
    finally:
        os.environ.update(saved)
