"""The sockets of the channel: Locust's, bounded and encrypted, and that of a worker's pulse.

Locust creates its sockets itself, so importing this module adds to them. A message is bounded before it is unpacked, and one
that is not of its form is dropped and counted: none ends a listener. With a run token, connections are encrypted and
authenticated by ZeroMQ's CURVE: the token gives the master's key pair, whose public key only those with the token know.

A pulse tells the master that a worker lives while its hub is too busy to send anything. A suspended or dead process has none,
nor has one behind a cut network. Rule: nothing in it waits for the hub; it has a thread and a socket to itself.
"""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import socket as tcp
import sys
from collections import Counter
from collections.abc import Callable
from types import UnionType
from typing import Any

import gevent
import msgpack
import zmq
from gevent import monkey
from locust.exception import RPCError
from locust.rpc import zmqrpc
from locust.rpc.protocol import Message, decode
from locust.runners import MasterRunner, WorkerRunner
from zmq.utils import z85
from zmq.utils.monitor import parse_monitor_message

from tailgauge.channel.auth import HOW, TOKEN, configured_token
from tailgauge.channel.supervisor import supervised
from tailgauge.clock import monotonic_ns
from tailgauge.errors import UsageError, failure

log = logging.getLogger("tailgauge")

# Bytes of a message: 1,000 results of a preflight have 2.5 MB, a piece of a part 128 kB.
TO_MASTER = 4 << 20
TO_WORKER = 64 << 20  # one session of long prompts, which cannot be divided
UNDECODABLE = "undecodable messages were dropped"
MALFORMED = "malformed messages were dropped"
REFUSED = f"connections without this run's {TOKEN} were refused"
dropped: Counter[str] = Counter()  # by problem, since the last report

_FAILED = {zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL, zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL}
_FAILURES = 3  # handshakes in a row; a tunnel's end without a master fails them, too
_VERSION = b"\xff" + bytes(8) + b"\x7f\x03\x01"  # how a greeting begins
_SIGNATURE = (0xFF, 0x7F)  # bytes 0 and 9 of a greeting
_GREETING_SIZE = 64  # bytes, with the mechanism
_sleep: Callable[[float], None] = monkey.get_original("time", "sleep")
_start: Callable[..., int] = monkey.get_original("_thread", "start_new_thread")

BY_NAME = {str: int}
_NUMBER = int | float
_MAX_FIGURE = 1e18  # of a figure in Locust's statistics, which are added up
_COUNTED = ("num_requests", "num_none_requests", "num_failures", "total_content_length")
_TIMED = ("start_time", "total_response_time", "max_response_time")
_MAYBE_TIMED = ("min_response_time", "last_request_timestamp")
_BY_NUMBER = ("response_times", "num_reqs_per_sec", "num_fail_per_sec")


def _is_count(value: object) -> bool:
    return isinstance(value, int) and 0 <= value <= _MAX_FIGURE


def _is_figure(value: object) -> bool:
    return isinstance(value, _NUMBER) and 0 <= value <= _MAX_FIGURE  # false for NaN


def _is_figure_or_none(value: object) -> bool:
    return value is None or _is_figure(value)


def _is_entry(value: object) -> bool:
    """Return whether these are statistics that Locust can add up and print."""
    if not fits(value, _ENTRY):
        return False
    entry: dict[str, Any] = value  # type: ignore[assignment]
    for name in _BY_NUMBER:
        for key, count in entry[name].items():
            if not (_is_figure(key) and _is_count(count) and count):
                return False
    return bool(sum(entry["response_times"].values()) <= entry["num_requests"])


_ENTRY: dict[str, Any] = {
    "name": str,
    "method": str,
    **dict.fromkeys(_COUNTED, _is_count),
    **dict.fromkeys(_TIMED, _is_figure),
    **dict.fromkeys(_MAYBE_TIMED, _is_figure_or_none),
    **dict.fromkeys(_BY_NUMBER, dict),
}
_ERROR = {"name": str, "method": str, "error": str, "occurrences": _is_count}
# The parts of Locust's messages that it keeps, or uses without a check: shapes as of `fits`.
_LOCUST_SHAPES: dict[type, dict[str, Any]] = {
    MasterRunner: {
        "client_ready": str,
        "client_stopped": None,
        "exception": {"msg": str, "traceback": str},
        "heartbeat": {"state": str, "current_cpu_usage": _NUMBER, "current_memory_usage": _NUMBER},
        "locustfile": {"version": str},
        "logs": {"worker_id": str, "logs": [str]},
        "quit": None,
        "spawning": None,
        "spawning_complete": {"user_classes_count": BY_NAME},
        "stats": {
            "stats": [_is_entry],
            "stats_total": _is_entry,
            "errors": {str: _ERROR},
            "user_classes_count": BY_NAME,
        },
    },
    WorkerRunner: {
        "ack": dict,
        "heartbeat": None,
        "quit": None,
        "reconnect": None,
        "spawn": {"timestamp": _NUMBER, "parsed_options": dict, "user_classes_count": BY_NAME},
        "spawning_complete": {"user_count": int},
        "stop": None,
        "update_user_class": dict,
    },
}


def fits(value: Any, shape: Any) -> bool:
    """Return whether a value has a shape.

    A type, None, or a test of it; [shape]: a list; (shape, ...): a list of so many; {str: shape}: any keys; else these keys at least.
    """
    if shape is None:
        return value is None
    if isinstance(shape, type | UnionType):
        return isinstance(value, shape)
    if isinstance(shape, list):
        return isinstance(value, list) and all(fits(item, shape[0]) for item in value)
    if isinstance(shape, tuple):
        has_length = isinstance(value, list) and len(value) == len(shape)
        return has_length and all(map(fits, value, shape))
    if isinstance(shape, dict):
        return isinstance(value, dict) and _fits_table(value, shape)
    return bool(shape(value))


def _fits_table(table: dict[Any, Any], shape: dict[Any, Any]) -> bool:
    if str in shape:
        return all(isinstance(key, str) and fits(item, shape[str]) for key, item in table.items())
    return all(key in table and fits(table[key], expected) for key, expected in shape.items())


def drop(problem: str, node: str = "", kind: str = "") -> None:
    """Count a dropped message; the log has the first."""
    dropped[problem] += 1
    origin = ""
    if node:
        origin = f", as of {node[:100]!a}: {kind[:100]!a}"
    level = logging.WARNING if dropped[problem] == 1 else logging.DEBUG
    log.log(level, "%s%s", problem, origin)


def report() -> list[str]:
    """Return how many messages were dropped since the last report, and why."""
    return [f"{problem}: {dropped.pop(problem):,}" for problem in list(dropped)]


# --- encryption -------------------------------------------------------------------------------------------------


def protect(socket: Any, max_size: int) -> bool:
    """Bound the messages that a new socket receives, and encrypt it with the run token; False without a token."""
    socket.maxmsgsize = max_size
    token = configured_token()
    if not token:
        return False
    secret = hashlib.blake2b(token.encode(), digest_size=32, person=b"tailgauge curve").digest()
    if socket.type == zmq.ROUTER:
        socket.curve_server = True
        socket.curve_secretkey = z85.encode(secret)
    else:
        socket.curve_serverkey = zmq.curve_public(z85.encode(secret))
        socket.curve_publickey, socket.curve_secretkey = zmq.curve_keypair()
    return True


def _count_refusals(events: Any) -> None:
    """Count the connections that a master refuses, until its socket is closed."""
    while True:
        event = parse_monitor_message(events.recv_multipart())["event"]
        if event == zmq.EVENT_MONITOR_STOPPED:
            return
        if event in _FAILED:
            drop(REFUSED)


def _refusal(socket: Any, is_encrypted: bool) -> str | None:
    """Return why the ZeroMQ socket at the other end refuses this one, for the user; None if none answers
    there, or if the tokens are no reason.

    It makes a plain connection to the master and reads the greeting of ZeroMQ, which names the mechanism
    that the master requires. `is_encrypted`: this side has a token. Waits 2 s for the connection, and as
    long for each read; other greenlets go on.
    """
    host, _, port = socket.last_endpoint.decode().rpartition("/")[2].rpartition(":")
    greeting = b""
    with (
        contextlib.suppress(OSError),
        tcp.create_connection((host.strip("[]"), int(port)), 2) as peer,
    ):
        peer.sendall(_VERSION)
        while len(greeting) < _GREETING_SIZE:
            data = peer.recv(_GREETING_SIZE)
            if not data:
                break
            greeting += data
    if len(greeting) < _GREETING_SIZE or (greeting[0], greeting[9]) != _SIGNATURE:
        return None
    requires_token = greeting[12:17] == b"CURVE"
    if requires_token and is_encrypted:
        cause = f"its {TOKEN} differs from the master's"
    elif requires_token:
        cause = f"{TOKEN} is not set: {HOW}"
    elif is_encrypted:
        cause = f"{TOKEN} is set here and not at the master"
    else:
        return None
    return f"the master refused this worker: {cause}"


# --- Locust's sockets -------------------------------------------------------------------------------------------

_create = zmqrpc.BaseSocket.__init__
_send_to_master = zmqrpc.BaseSocket.send


def _init(self: Any, sock_type: int, ipv4_only: bool) -> None:
    _create(self, sock_type, ipv4_only)  # type: ignore[no-untyped-call]
    is_master = sock_type == zmq.ROUTER
    try:
        max_size = TO_MASTER if is_master else TO_WORKER
        self.is_encrypted = protect(self.socket, max_size)
    except UsageError as error:  # under plain Locust; our commands have looked before
        sys.stderr.write(f"tailgauge: {error}\n")
        sys.exit(error.exit_code)
    self.failures = 0
    self.events = self.socket.get_monitor_socket()
    if is_master:
        count_refusals = supervised(_count_refusals, "refused connections cannot be counted")
        gevent.spawn(count_refusals, self.events)


def _send(self: Any, message: Message) -> None:
    """Send to the master; ConnectionRefusedError if it has refused this worker from the start."""
    _look_for_refusal(self)
    try:
        self.socket.send(message.serialize(), zmq.NOBLOCK)  # type: ignore[no-untyped-call]
    except zmq.ZMQError:
        _look_for_refusal(self)  # a handshake that has failed since then ended the connection
        _send_to_master(self, message)  # tries again, for seconds


def _look_for_refusal(self: Any) -> None:
    """Raise ConnectionRefusedError if the master has refused this worker since the last call."""
    while self.events is not None and self.events.get(zmq.EVENTS) & zmq.POLLIN:
        event = parse_monitor_message(self.events.recv_multipart())["event"]
        if event == zmq.EVENT_HANDSHAKE_SUCCEEDED:
            self.socket.disable_monitor()
            self.events.close(0)  # else the context would never end
            self.events = None
        elif event in _FAILED:
            self.failures += _FAILURES if event == zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL else 1
    if self.events is not None and self.failures >= _FAILURES:
        refusal = _refusal(self.socket, self.is_encrypted)
        if refusal:
            raise ConnectionRefusedError(refusal)
        self.failures = 0


def _receive(self: Any) -> tuple[str, Message]:
    """Return the name of the sender, and the next message; whatever else arrives is dropped."""
    while True:
        try:
            frames = self.socket.recv_multipart()
        except zmq.ZMQError as error:
            raise RPCError("ZMQ network broken") from error
        try:
            return _message(*frames)
        except Exception:  # noqa: BLE001 - whatever a stranger sends
            drop(UNDECODABLE)
            gevent.sleep(0)  # a flood of them must not stop the hub


def _message(*frames: bytes) -> tuple[str, Message]:
    """Return the name of the sender and its message; ValueError, or whatever unpacking raises, for another form."""
    *sender, body = frames
    kind, data, node = msgpack.unpackb(body, raw=False, strict_map_key=False, object_hook=decode)
    if len(sender) > 1 or not isinstance(kind, str):
        raise ValueError
    if not isinstance(node, str) or not node.isprintable():
        raise ValueError
    name = node
    if sender:
        name = sender[0].decode()
    if name != node and not name.startswith(f"{node}-"):
        raise ValueError
    return name, Message(kind, data, node)  # type: ignore[no-untyped-call]


def _guarded(runner: Any) -> Callable[..., None]:
    """Return a runner's handler of messages, which drops those that it cannot handle."""
    handle = runner.handle_message
    shapes = _LOCUST_SHAPES[runner]

    def handle_message(self: Any, *sender_and_message: Any) -> None:
        message = sender_and_message[-1]
        is_valid = message.type in shapes and fits(message.data, shapes[message.type])
        if not is_valid and message.type not in self.custom_messages:
            drop(MALFORMED, message.node_id, message.type)
            return
        try:
            handle(self, *sender_and_message)
        except Exception:
            drop(MALFORMED, message.node_id, message.type)
            log.debug("dropped", exc_info=True)

    return handle_message


_METHODS: dict[str, Callable[..., Any]] = {
    "__init__": _init,
    "send": _send,
    "recv": lambda self: _receive(self)[1],
    "recv_from_client": _receive,
}
for _name, _method in _METHODS.items():
    setattr(zmqrpc.BaseSocket, _name, _method)
for _runner in _LOCUST_SHAPES:
    _runner.handle_message = _guarded(_runner)  # type: ignore[attr-defined]


# --- the pulse --------------------------------------------------------------------------------------------------


def beat(
    runner: Any,
    sealed: Message,
    last_sent_ns: Callable[[], int],
    ended: Callable[[], bool],
    every_s: float,
) -> None:
    """Send a pulse to the master of a Locust worker, from another thread, whenever no other message has left for a while.

    `sealed`: the message, signed. `last_sent_ns`: when the last other message left. After twice `every_s` without
    one, the pulse goes out every `every_s`, until `ended`. It never waits for the hub, so that a busy
    worker does not count as lost.
    """
    address = f"tcp://{runner.master_host}:{runner.master_port}"
    by_ipv6 = bool(runner.client.socket.getsockopt(zmq.IPV6))
    body = sealed.serialize()  # type: ignore[no-untyped-call]

    def send() -> None:
        with zmq.Context() as context, context.socket(zmq.DEALER) as socket:
            socket.linger = 0
            socket.ipv6 = by_ipv6
            socket.identity = f"{sealed.node_id}-{monotonic_ns()}".encode()
            # Encrypts the connection, if there is a run token.
            protect(socket, max_size=TO_WORKER)
            is_connected = False
            while not ended():
                _sleep(every_s)
                if monotonic_ns() - last_sent_ns() < 2 * every_s * 1e9:
                    continue
                if not is_connected:
                    socket.connect(address)
                    is_connected = True
                # If the master does not read, the next one may arrive.
                with contextlib.suppress(zmq.Again):
                    socket.send(body, zmq.NOBLOCK)

    def run() -> None:
        is_logged = False
        while not ended():
            try:
                send()
            except zmq.ZMQError as error:
                if not is_logged:
                    # Not with a logger, whose lock may wait for the hub.
                    text = f"tailgauge: this worker cannot send its heartbeat: {error}; it tries again\n"
                    os.write(2, text.encode())
                is_logged = True
                _sleep(every_s)

    try:
        _start(run, ())
    except RuntimeError as error:
        log.warning("this worker sends no heartbeat: %s", failure(error))
