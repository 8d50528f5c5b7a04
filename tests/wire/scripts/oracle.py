"""Streams of the grammar through the harness and the official SDKs: PROTOCOL, SEED, first number, count."""

from __future__ import annotations

import json
import sys

from wire import oracle

protocol, seed, first, count = sys.argv[1:]
numbers = range(int(first), int(first) + int(count))
findings = oracle.check(protocol, [f"{seed}-{number}" for number in numbers])
print(json.dumps(findings.facts()))
