"""The table of wire protocols, and the tables `[target]` and `[second_target]` of a scenario with the settings of each.

A protocol is a row here, a file beside this one, and its simulated side, or a plugin's; nothing else knows its name.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from pydantic import model_validator

from tailgauge.plugins import plugin
from tailgauge.protocols.anthropic import Anthropic
from tailgauge.protocols.custom_sse import CustomSse
from tailgauge.protocols.openai import OpenAI
from tailgauge.protocols.protocol import SIMULATED, TargetSettings, WireProtocol, at_provider
from tailgauge.table import add_class, by_name, with_choices

ROWS: tuple[type[WireProtocol], ...] = (Anthropic, OpenAI, CustomSse)
PROTOCOLS = by_name(ROWS)
PROVIDERS = {row.name: row.provider for row in ROWS if row.provider is not None}
SDKS = tuple(row.sdk for row in ROWS if row.sdk is not None)


def is_self_hosted(url: str) -> bool:
    """Return whether a target is neither the embedded endpoint nor a provider."""
    if url == SIMULATED:
        return False
    return urlsplit(url).hostname not in {provider.host for provider in PROVIDERS.values()}


def refusal(target: TargetSettings, need: str) -> str:
    """Return why calls that need this cannot be sent to a target; empty where they can."""
    row = PROTOCOLS[target.protocol]
    if need in row.offers:
        return row.refuses(target.url, need)
    names = [repr(protocol.name) for protocol in PROTOCOLS.values() if need in protocol.offers]
    expected = " or ".join(names)
    return f"expected target.protocol {expected}, got {target.protocol!r}, which has no {need}"


class _Checked(TargetSettings):
    __doc__ = TargetSettings.__doc__

    @model_validator(mode="after")
    def _used(self) -> _Checked:
        """Raise ValueError for settings that the protocol does not use, and for a URL that it refuses."""
        used_by = {
            row.name: {row.name} for row in PROTOCOLS.values() if row.settings_type is not None
        }
        self.refuse_unused("protocol", used_by)
        row = PROTOCOLS[self.protocol]
        has_key = self.api_key_env is not None or at_provider(self.url, row.provider)
        if self.auth_header is not None and not has_key:
            raise ValueError(
                "auth_header: there is no key for it: set api_key_env to the variable with the key"
            )
        if self.max_tokens_field is not None and not row.limit_fields:
            raise ValueError(f"max_tokens_field: does not apply with protocol = {self.protocol!r}")
        problem = row.refuses_url(self.url)
        if problem:
            raise ValueError(f"url: {problem}")
        return self


if TYPE_CHECKING:

    class Target(_Checked):
        """Where the traffic goes, with the table of its protocol."""

else:
    Target = with_choices("Target", _Checked, "protocol", ROWS)


def _add(row: Any) -> None:
    """Add the protocol of a plugin."""
    add_class(PROTOCOLS, row, WireProtocol, Target, "protocol")
    if row.provider is not None:
        PROVIDERS[row.name] = row.provider


plugin.subscribe(plugin.PROTOCOLS, _add)
