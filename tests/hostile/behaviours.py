"""How a target may mean harm: behaviours by name, each what is sent in answer to one request.

A row of the tables is a name, what is sent (see `answers`), and how the request's row may end.
"""

from __future__ import annotations

import gzip
from collections.abc import Callable
from dataclasses import dataclass

from hostile.answers import (
    CHUNKED,
    END,
    EVIL,
    FLOOD,
    HEAD,
    MARK,
    Request,
    Sent,
    around,
    behind,
    bomb,
    chunk,
    deep,
    different,
    echo,
    echo_error,
    echo_event,
    ended,
    error,
    error_event,
    forever,
    framed,
    head,
    hung_up,
    in_pieces,
    late,
    noise,
    once,
    packed,
    plain,
    refused,
    rewritten,
    script,
    script_error,
    script_event,
    stalled,
    summary,
    whole,
    within,
)


@dataclass(frozen=True)
class Behaviour:
    """What is sent, and how the row may end: class, and after a colon the error's type. A flood ends because we hang up."""

    send: Callable[[Request], Sent]
    ends: tuple[str, ...]
    other: dict[str, tuple[str, ...]]
    is_flood: bool

    def ends_as(self, protocol: str) -> tuple[str, ...]:
        return self.other.get(protocol, self.ends)


def case(
    send: Callable[[Request], Sent],
    *ends: str,
    flood: bool = False,
    late: bool = False,
    **other: str,
) -> Behaviour:
    """`late`: it may take the whole deadline."""
    more = ("timeout",) if flood or late else ()
    return Behaviour(
        send, (*ends, *more), {name: (text, *more) for name, text in other.items()}, flood
    )


# fmt: off
BOMB, BOMB_CHARSET = bomb(31), bomb(15)
DUPLICATED = b'{"type":"ping","type":"ping","choices":[],"choices":[],"usage":null,"usage":null,"usage":{"output_tokens":1}}'
BOM = b"\xef\xbb\xbf"
OK, EMPTY, LATE, CLOSED = "ok", "empty", "timeout", "connect_error:closed"
TOO_BIG, NOT_HTTP, NO_STREAM = "client_error:head_too_large", "client_error:not_http", "client_error:not_an_event_stream"
FRAMING, BAD, TOO_LARGE = "stream_error:framing", "stream_error:malformed_event", "stream_error:too_large"
LONG_EVENT, MANY, PACKED = "stream_error:event_too_large", "stream_error:too_many_events", "stream_error:compressed"
STALE = "connect_error:stale_connection"  # the same, where an earlier answer came over the connection
CUT, RST, NO_END = "truncated:connection_closed", "truncated:connection_reset", "truncated:no_end_mark"
NOT_JSON, COUNTS = "client_error:not_json", "ok:malformed_usage"
AFTER_END = "stream_error:content_after_end"
NO_REASON = "aborted:no_finish_reason"
UNKNOWN_REASON = "aborted:unknown_finish_reason"
HTTP = b"HTTP/1.1 200 OK\r\n"
LENGTH = HEAD + b"content-length: "
RATE = b"anthropic-ratelimit-requests-remaining: "

HEADS = {
    "big_header": case(forever(HEAD + b"x-big: ", FLOOD), TOO_BIG, flood=True),
    "many_headers": case(forever(HEAD, b"x-a: b\r\n" * 1000), TOO_BIG, flood=True),
    "few_bytes_many_headers": case(once(HEAD + b"a:b\r\n" * 9000 + b"\r\n"), TOO_BIG),
    "large_head_within_bounds": case(framed(head(*(b"x-%d: %b" % (n, b"y" * 240) for n in range(240)))), OK),
    "interim": case(forever(b"", b"HTTP/1.1 100 Continue\r\n\r\n" * 1000), TOO_BIG, flood=True),
    "slow_interim": case(forever(b"", b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n", 0.005), TOO_BIG, flood=True),
    "interim_with_large_heads": case(forever(b"", b"HTTP/1.1 103 Early\r\n" + b"x: " + b"y" * 60_000 + b"\r\n\r\n"), TOO_BIG, flood=True),
    "few_interim": case(framed(b"HTTP/1.1 100 Continue\r\n\r\nHTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + CHUNKED), OK),
    "slow_head": case(late(HEAD + b"x-slow: ", 0.01), LATE, flood=True),
    "noise": case(noise, TOO_BIG, NOT_HTTP, flood=True),
    "silence": case(stalled(b""), LATE),
    "hung_up": case(hung_up(), CLOSED, STALE),
    "reset": case(hung_up(reset=True), CLOSED, STALE),
    "half_a_head": case(hung_up(HEAD + b"x-a: "), CLOSED),
    "half_a_head_and_silence": case(stalled(HEAD + b"x-a"), LATE),
    **{name: case(once(answer), NOT_HTTP) for name, answer in {
        "another_protocol": b"SSH-2.0-OpenSSH_9.2\r\n\r\n",
        "http2_status_line": b"HTTP/2 200 OK\r\n\r\n",
        "status_of_two_digits": b"HTTP/1.1 20 OK\r\n\r\n",
        "status_of_four_digits": b"HTTP/1.1 2000 OK\r\n\r\n",
        "status_below_zero": b"HTTP/1.1 -20 OK\r\n\r\n",
        "status_of_other_digits": b"HTTP/1.1 \xb2\xb2\xb2 OK\r\n\r\n",
        "status_zero": b"HTTP/1.1 000 OK\r\n\r\n",
        "status_below_100": b"HTTP/1.1 099 OK\r\n\r\n",
        "switching_protocols": b"HTTP/1.1 101 Switching\r\nupgrade: h2c\r\nconnection: upgrade\r\n\r\n" + FLOOD,
    }.items()},
    "http2_frames": case(hung_up(b"\x00\x00\x12\x04" + b"\x00" * 23), NOT_HTTP),
    "http_0_9": case(hung_up(b"<html>hello</html>"), CLOSED),
    "http_1_0": case(plain(b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n"), OK),
    "status_999": case(ended(999, b"{}"), "server_error:error"),
    **{name: case(framed(head(line)), NOT_HTTP) for name, line in {
        "header_without_a_colon": b"nothing",
        "header_without_a_name": b": x",
        "space_before_the_colon": b"x-a : b",
        "nul_in_a_header": b"request-id: a\x00b",
        "cr_in_a_header": b"request-id: a\rb",
    }.items()},
    "folded_header": case(framed(head(b"x-a: b", b" c")), NOT_HTTP),
    "lf_heads": case(hung_up(HEAD.replace(b"\r", b"") + b"\ndata: x\n\n"), NOT_HTTP),
    "head_byte_by_byte": case(in_pieces(1), OK),
    "keep_alive_for_ever": case(framed(head(b"keep-alive: timeout=99999999999999999999, max=-1")), OK),
    "cookies": case(framed(head(*[b"set-cookie: a=" + b"b" * 400] * 100)), OK),
    "many_rate_limit_headers": case(framed(head(*(b"x-ratelimit-%d: %d" % (n, n) for n in range(200)))), OK),
    "server_timing_without_sense": case(framed(head(b'server-timing: ,;=",;dur=1e999,a;dur=nan,b;dur=-1,' + b"c;dur=9" * 900)), OK),
}
STATUSES = {
    "redirect": case(ended(307, b"", b"location: /redirect/v1/messages"), "client_error:redirect"),
    "redirect_elsewhere": case(ended(301, b"", b"location: http://evil.invalid/"), "client_error:redirect"),
    "no_content": case(once(b"HTTP/1.1 204 No\r\n\r\n"), NOT_JSON),
    "not_modified": case(once(b"HTTP/1.1 304 No\r\n\r\n"), NOT_JSON),
    "partial_content": case(ended(206, b"{}", b"content-range: bytes 0-1/9"), "client_error:error"),
    "created": case(ended(201, b"data: [DONE]\n\n", kind=b"text/event-stream"), NOT_JSON),
    "error_without_a_body": case(ended(500, b""), "server_error:not_json"),
    "error_page": case(ended(502, EVIL.encode(), kind=b"text/html"), "server_error:not_json"),
    "error_cut_off": case(hung_up(whole(500, error("x" * 900))[:-40]), "server_error:not_json"),
    **{name: case(ended(400, body), "client_error:error") for name, body in {
        "error_of_a_list": b'[{"error": []}]',
        "error_of_a_number": b'{"error": 5}',
        "error_of_a_text": b'{"error": "no"}',
        "error_of_null": b"null",
    }.items()},
    "error_message_of_a_list": case(ended(400, error([["x"] * 9] * 9), ), "client_error:bad"),
    "error_type_of_a_list": case(ended(400, error("no", ["x"] * 99)), "client_error"),
    "error_type_of_many_characters": case(ended(400, error("no", "y" * 60_000)), "client_error"),
    "error_by_our_name": case(ended(400, error("no", "too_large")), "client_error:target: too_large"),
    "error_ten_thousand_deep": case(ended(400, b'{"error":' * 10_000 + b"1" + b"}" * 10_000), NOT_JSON),
    "error_in_utf_16": case(ended(400, '{"error": {"type": "wide"}}'.encode("utf-16")), "client_error:wide"),
    "error_of_500_kb": case(ended(500, error("x" * 500_000)), "server_error:not_json"),
    "endless_error": case(forever(b"HTTP/1.1 500 Oops\r\n\r\n", FLOOD), "server_error:too_large", flood=True),
    "endless_chunked_error": case(forever(b"HTTP/1.1 400 No\r\ntransfer-encoding: chunked\r\n\r\n", chunk(b"x") * 9000), "client_error:too_large", flood=True),
    "overloaded": case(ended(529, error("no", "overloaded_error")), "overloaded:overloaded_error"),
    "unavailable": case(ended(503, b"later", b"retry-after: 9" + b"9" * 5000), "overloaded:not_json"),
    "rate_limit": case(refused(RATE + b"0"), "rate_limited:rate_limit_error"),
    "rate_limit_without_sense": case(refused(RATE + b"-1", b"x-ratelimit-reset-tokens: NaN"), "rate_limited:rate_limit_error"),
    **{f"retry_after_{name}": case(refused(b"retry-after: " + value), "rate_limited:rate_limit_error") for name, value in {
        "of_thousands_of_digits": b"9" * 5000, "not_a_number": b"nan", "below_zero": b"-1", "infinite": b"1e999", "a_far_date": b"Fri, 31 Dec 9999 23:59:59 GMT",
        "a_date_without_sense": b"Fri, 99 Foo 99999 99:99:99 +9999", "other_digits": "\u0669".encode(), "empty": b""}.items()},
}
LENGTHS = {
    "length_repeated_and_different": case(plain(LENGTH + b"{length}\r\ncontent-length: {less}\r\n\r\n"), NOT_HTTP),
    "length_repeated_and_equal": case(plain(LENGTH + b"{length}\r\nContent-Length: {length}\r\n\r\n"), OK),
    **{name: case(framed(head(line)), NOT_HTTP) for name, line in {
        "length_beside_chunks": b"content-length: 5",
        "length_zero_beside_chunks": b"Content-Length: 0",
        "chunked_repeated": b"transfer-encoding: chunked",
    }.items()},
    **{f"length_{name}": case(once(LENGTH + value + b"\r\n\r\ndata: x\n\n"), NOT_HTTP) for name, value in {
        "below_zero": b"-1", "with_a_plus": b"+5", "of_a_list": b"5, 5", "of_30_digits": b"9" * 30, "of_5000_digits": b"9" * 5000, "of_2_to_63": b"9223372036854775808",
        "of_a_fraction": b"1.5", "in_hexadecimal": b"0x10", "empty": b"", "of_other_digits": b"\xb2"}.items()},
    "length_too_large": case(plain(LENGTH + b"9999\r\n\r\n"), CUT, openai=OK),
    "length_too_small": case(plain(LENGTH + b"40\r\n\r\n"), NO_END),
    "length_zero": case(plain(LENGTH + b"0\r\n\r\n"), NO_END),
    "until_the_end": case(plain(HEAD + b"\r\n"), OK),
    "until_the_end_and_cut": case(plain(HEAD + b"\r\n", cut=40), NO_END),
    **{f"coding_{name}": case(framed(head(b"x: y").replace(b"encoding: chunked", b"encoding: " + value)), NOT_HTTP) for name, value in {
        "gzip_and_chunked": b"gzip, chunked", "chunked_and_gzip": b"chunked, gzip", "identity": b"identity", "that_ends_in_chunked": b"xchunked", "empty": b"", "after_a_tab": b"\x0bchunked"}.items()},
    "two_answers": case(once(lambda asked: 2 * (CHUNKED + asked.answer())), OK),
    "noise_behind_the_end": case(once(lambda asked: CHUNKED + asked.answer() + b"\x00" * 500), OK),
}
CHUNKS = {
    **{f"chunk_size_{name}": case(hung_up(CHUNKED + value + b"\r\nabcde\r\n"), FRAMING) for name, value in {
        "of_17_digits": b"1" * 17, "of_5000_digits": b"1" * 5000, "below_zero": b"-5", "with_a_plus": b"+5", "with_0x": b"0x5", "empty": b"", "of_letters": b"xyz",
        "with_a_line": b"1_0", "with_a_space": b"5 5", "of_other_bytes": b"\xff"}.items()},
    "chunk_size_of_2_to_63": case(hung_up(CHUNKED + b"8000000000000000\r\n: x\n\n"), CUT),
    "huge_chunk": case(forever(CHUNKED + b"FFFFFFFFFFFFFFFF\r\n", b": x\n\n" * 8000), TOO_LARGE, flood=True),
    "endless_chunk_line": case(forever(CHUNKED + b"1", FLOOD), FRAMING, flood=True),
    "chunk_extension_of_70_kb": case(once(CHUNKED + b"5;a=" + b"x" * 70_000 + b"\r\nabcde\r\n"), FRAMING),
    "chunk_extension_of_60_kb": case(around(b"8;a=" + b"x" * 60_000 + b"\r\n: well\n\n\r\n"), OK),
    "endless_chunk_extensions": case(forever(CHUNKED, (b"3;a=" + b"x" * 30_000 + b"\r\n:\n\n\r\n") * 2), TOO_LARGE, flood=True),
    "bytes_behind_a_chunk": case(hung_up(CHUNKED + b"5\r\nabcdeXX\r\n"), FRAMING),
    "chunk_without_its_line_end": case(hung_up(CHUNKED + b"9\r\ndata: x\n\n9\r\n"), FRAMING),
    "line_feeds_alone": case(once(lambda asked: CHUNKED + asked.answer().replace(b"\r\n", b"\n")), OK),
    "endless_trailers": case(forever(CHUNKED + b"0\r\n", b"x-a: b\r\n" * 4000), FRAMING, flood=True),
    "trailer_without_an_end": case(forever(CHUNKED + b"0\r\nx-a: ", FLOOD), FRAMING, flood=True),
    "trailers_with_framing": case(once(lambda asked: CHUNKED + asked.answer()[:-2] + b"content-length: 5\r\ntransfer-encoding: gzip\r\n\r\n"), OK),
    "tiny_chunks": case(forever(CHUNKED, b"1\r\na\r\n" * 8000), LONG_EVENT, flood=True),
    "chunks_of_one_byte": case(in_pieces(1, chunks=True), OK),
    "reads_of_seven_bytes": case(in_pieces(7), OK),
    "no_last_chunk": case(hung_up(lambda asked: CHUNKED + asked.answer().removesuffix(END)), CUT, openai=OK),
    "cut_in_a_size": case(hung_up(lambda asked: CHUNKED + asked.opening() + b"1"), CUT),
    "cut_in_an_event": case(hung_up(lambda asked: CHUNKED + (asked.opening() + asked.word("a"))[:-20]), CUT),
    "reset_in_the_middle": case(hung_up(Request.begun, reset=True), RST, CUT, CLOSED),
    "stalled_in_the_middle": case(stalled(Request.begun), LATE),
    "stalled_before_the_last_chunk": case(stalled(lambda asked: CHUNKED + asked.answer().removesuffix(END)), LATE),
    "stalled_behind_a_large_head": case(stalled(lambda asked: head(*(b"x-%d: %b" % (n, b"y" * 240) for n in range(240))) + asked.opening()), LATE, TOO_LARGE),
    "stalled_in_a_large_head": case(stalled(HEAD + b"x: " + b"y" * 65_000), LATE, TOO_BIG),
    "stalled_in_a_large_chunk_line": case(stalled(lambda asked: CHUNKED + asked.opening() + b"5;a=" + b"y" * 65_000), LATE, TOO_LARGE),
    "stalled_in_an_event_of_4_mb": case(stalled(lambda asked: CHUNKED + asked.opening() + chunk(b"data: " + FLOOD * 60)), LATE, TOO_LARGE),
    "half_an_end": case(stalled(lambda asked: CHUNKED + asked.answer()[:-1]), LATE),
}
EVENTS = {
    "endless_line": case(forever(HEAD + b"\r\ndata: ", FLOOD), LONG_EVENT, flood=True),
    "giant_line": case(once(CHUNKED + chunk(b"data: " + FLOOD * 80 + b"\n\n") + END), LONG_EVENT, late=True),
    "giant_line_without_a_field": case(forever(CHUNKED, chunk(FLOOD)), LONG_EVENT, flood=True),
    "giant_events": case(forever(CHUNKED, chunk(b": " + FLOOD * 60 + b"\n\n")), TOO_LARGE, flood=True),
    "giant_texts": case(once(lambda asked: CHUNKED + asked.opening() + asked.word("x" * 3_900_000) * 8 + asked.closing()), OK, late=True),
    "large_texts": case(once(lambda asked: CHUNKED + asked.opening() + different(asked.word("#" * 8 + "x" * 40_000), 2500) + asked.closing()), OK, late=True),
    "kept_text_of_120_kb": case(around(lambda asked: asked.word("\u65e5\u672c" * 400) * 50), OK, TOO_LARGE, late=True),
    "endless_event": case(forever(HEAD + b"\r\n", b"data: x\n" * 8000), LONG_EVENT, flood=True),
    "endless_comments": case(forever(HEAD + b"\r\n", b": keep-alive\n\n" * 4000), TOO_LARGE, flood=True),
    "endless_blank_lines": case(forever(HEAD + b"\r\n", b"\n" * 60_000), TOO_LARGE, flood=True),
    "endless_text": case(forever(Request.begun, lambda asked: asked.word("a") * 500), MANY, flood=True),
    "endless_long_lines": case(forever(Request.begun, lambda asked: asked.word("a" * 60_000)), TOO_LARGE, flood=True),
    "endless_trickle": case(forever(CHUNKED, lambda asked: asked.word("a"), 0.02), LATE, flood=True),
    "endless_pings": case(forever(CHUNKED, chunk(b': x\n\nevent: ping\ndata: {"type": "ping"}\n\n'), 0.02), LATE, flood=True),
    "endless_bad_events": case(forever(CHUNKED, chunk(b"data: {\n\n" * 5000)), BAD, flood=True),
    "long_event": case(within(b'{"type":"ping","x":"' + FLOOD * 300 + b'"}'), LONG_EVENT, late=True),
    "lists_without_number": case(within(b"[" + b"[]," * 1_300_000 + b"1]"), LONG_EVENT, late=True),
    "objects_without_number": case(within(b"[" + b"{}," * 1_300_000 + b"1]"), LONG_EVENT, late=True),
    "lists_a_few": case(within(b'{"type":"ping","choices":[],"x":[' + b"[]," * 200_000 + b"1]}"), OK, late=True),
    **{name: case(around(part), OK) for name, part in {
        "long_name": chunk(b"event: " + b"y" * 1_000_000 + b'\ndata: {"type":"ping","choices":[]}\n\n'),
        "long_id": chunk(b"id: " + b"y" * 1_000_000 + b"\nretry: " + b"9" * 5000 + b"\n\n"),
        "unknown_events": chunk(b'event: weather\ndata: {"type":"weather","choices":[]}\n\n' * 50),
    }.items()},
    **{name: case(within(text), BAD) for name, text in {
        "deep": deep(),
        "no_json": b"hello",
        "half_json": b'{"type": "content_block_delta", "text": "x',
        "two_jsons": b'{"type":"ping","choices":[]} {}',
        "nul": b'{"type":"ping","choices":[],"text":"\x00"}',
        "data_in_utf_16": '{"type":"ping"}'.encode("utf-16-le"),
        "mark_in_the_data": BOM + b'{"type":"ping","choices":[]}',
    }.items()},
    "duplicated": case(within(DUPLICATED), OK),
    "array": case(within(b"[1]"), BAD, sse=OK),
    "number": case(within(b"17"), BAD, sse=OK),
    "not_utf8": case(once(lambda asked: CHUNKED + asked.opening() + asked.word("?").replace(b"?", b"\xff") + asked.closing()), BAD),
    "half_characters": case(once(lambda asked: CHUNKED + asked.opening("\ud800") + asked.word("\udfff") + asked.closing("\ud800")), OK, openai=UNKNOWN_REASON, anthropic=UNKNOWN_REASON),
    "mark_first": case(rewritten(lambda stream: BOM + stream), OK),
    "mark_repeated": case(rewritten(lambda stream: BOM + b": comment\n\n" + BOM + stream), BAD),
    "mark_before_an_event": case(around(chunk(BOM + b'data: {"type":"ping","choices":[]}\n\n')), BAD),
    "mark_before_a_field": case(around(chunk(b'event: x\n' + BOM + b'data: {"type":"ping","choices":[]}\n\n')), BAD),
    "carriage_returns": case(rewritten(lambda stream: stream.replace(b"\n", b"\r")), OK),
    "both_line_ends": case(rewritten(lambda stream: stream.replace(b"\n", b"\r\n")), OK),
    "mixed_line_ends": case(rewritten(lambda stream: stream.replace(b"\n\n", b"\r\n\n").replace(b"usage\n", b"usage\r")), OK),
    "utf_16_stream": case(rewritten(lambda stream: stream.decode().encode("utf-16")), NO_STREAM),
    **{name: case(framed(head(kind=kind)), OK) for name, kind in {
        "utf_16_by_name": b"text/event-stream; charset=utf-16",
        "utf_32_by_name": b'text/event-stream; charset="UTF-32"',
        "charset_zlib": b"text/event-stream; charset=zlib",
        "latin_1_by_name": b"text/event-stream; charset=ISO-8859-1",
        "kind_in_capitals": b"Text/Event-Stream;Charset=UTF-8",
        "kind_almost": b"text/event-streams",
    }.items()},
    "no_kind": case(framed(HTTP + b"transfer-encoding: chunked\r\n\r\n"), OK),
    "page": case(ended(200, EVIL.encode(), kind=b"text/html"), NO_STREAM),
    "json_instead": case(ended(200, b'{"id": "x", "content": []}'), NO_STREAM),
    "nothing": case(once(CHUNKED + END), NO_END),
    "only_comments": case(once(CHUNKED + chunk(b": hello\n\n") + END), NO_END),
    "only_the_end": case(once(lambda asked: CHUNKED + asked.end() + END), EMPTY, openai=NO_REASON, anthropic=NO_REASON),
    "no_text": case(once(lambda asked: CHUNKED + asked.opening() + asked.word("") + asked.closing()), EMPTY),
    "end_repeated": case(behind(Request.end), OK),
    "ping_behind_the_end": case(behind(chunk(b': x\n\ndata: {"type":"ping","choices":[]}\n\n')), OK),
    "text_behind_the_end": case(behind(lambda asked: asked.word("b")), AFTER_END, openai=OK),
    "answer_behind_the_end": case(behind(lambda asked: asked.opening() + asked.word("b") + asked.summary() + asked.end()), AFTER_END, openai=OK, anthropic="stream_error:second_message"),
    "error_behind_the_end": case(behind(error_event("no", "late")), "stream_error:late", openai=OK),
    "error_in_the_middle": case(around(error_event("no", "overloaded_error")), "stream_error:overloaded_error"),
    "error_event_by_our_name": case(around(error_event("no", "framing")), "stream_error:target: framing"),
    "text_is_a_number": case(around(lambda asked: asked.delta(5)), BAD),
    "text_is_a_list": case(around(lambda asked: asked.delta(["a"])), BAD),
    "text_is_an_object": case(around(lambda asked: asked.delta({"a": "b"})), BAD),
    "text_is_null": case(around(lambda asked: asked.delta(None)), BAD, openai=OK, sse=OK),
    "long_values": case(once(lambda asked: CHUNKED + asked.opening("m" * 1_000_000) + asked.word("a") + asked.closing("r" * 1_000_000)), OK, openai=UNKNOWN_REASON, anthropic=UNKNOWN_REASON),
    "five_thousand_texts": case(around(lambda asked: asked.word("a") * 4999), OK, late=True),
    "padding": case(around(lambda asked: asked.delta("a", obfuscation="x" * 7000) * 20), OK),
    "a_new_form_each_time": case(around(lambda asked: b"".join(asked.delta("a", **{f"k{n}": "x" * 3000}) for n in range(200))), OK),
    **{f"usage_{name}": case(summary(lambda asked, text=text: asked.count(text)), COUNTS) for name, text in {
        "negative": "-5", "absurd": "1" + "0" * 30, "text": '"' + "9" * 100_000 + '"', "not_a_number": "NaN", "infinite": "1e999", "true": "true",
        "fraction": "1.5", "zero": "0"}.items()},
    "usage_very_long": case(summary(lambda asked: asked.count("9" * 100_000)), BAD, sse=OK),
    "usage_is_a_list": case(summary(lambda _: "[[1]]"), COUNTS, sse=OK),
    "usage_is_null": case(summary(lambda asked: asked.count("null")), OK),
}
CODINGS = {
    "bomb": case(packed(b"gzip", BOMB), PACKED),
    "bomb_error": case(ended(400, BOMB, b"content-encoding: gzip"), "client_error:compressed", late=True),
    "bomb_by_charset": case(ended(400, BOMB_CHARSET, kind=b"application/json; charset=zlib"), NOT_JSON, late=True),
    "small_gzip": case(packed(b"gzip", gzip.compress(b"data: {}\n\n")), PACKED),
    **{f"coded_{name}": case(packed(value, b"data: {}\n\n"), PACKED) for name, value in {
        "deflate": b"deflate", "brotli": b"br", "zstd": b"ZSTD", "repeatedly": b"gzip, gzip", "unknown": b"x" * 5000}.items()},
    "coded_identity": case(framed(head(b"content-encoding: Identity")), OK),
}
SCRIPTS = {
    "script": case(script, OK, openai=UNKNOWN_REASON, anthropic=UNKNOWN_REASON),
    **{f"script_{status}": case(script_error(status), f"{kind}:{MARK}") for status, kind in {400: "client_error", 429: "rate_limited", 500: "server_error"}.items()},
    "script_event": case(script_event, f"stream_error:{MARK}"),
    "echo": case(echo, OK, openai=UNKNOWN_REASON, anthropic=UNKNOWN_REASON),
    "echo_error": case(echo_error, "client_error:[redacted]"),
    "echo_event": case(echo_event, "stream_error:[redacted]"),
}
BEHAVIOURS = HEADS | STATUSES | LENGTHS | CHUNKS | EVENTS | CODINGS | SCRIPTS
# fmt: on
FAIR_EVERY = 4
CROWD = (  # those that hold most, for many of them at once
    "large_texts", "giant_texts", "stalled_in_an_event_of_4_mb", "stalled_behind_a_large_head", "stalled_in_a_large_head", "stalled_in_a_large_chunk_line",
    "lists_a_few", "a_new_form_each_time", "endless_text", "tiny_chunks", "kept_text_of_120_kb", "kept_text_of_120_kb",
)  # fmt: skip


def mix() -> list[str]:
    """All behaviours, those with a script or a key first, and fair answers between them."""
    names = [*SCRIPTS, *(name for name in BEHAVIOURS if name not in SCRIPTS)]
    return [
        each
        for at in range(0, len(names), FAIR_EVERY)
        for each in (*names[at : at + FAIR_EVERY], "fair")
    ]
