"""The server log of an endpoint that answers, answers half, or not at all."""

import socket
import threading

import pytest

from tailgauge.master.embedded_endpoint import fetch_server_log
from tailgauge.rows.run_folder import RunFolder


@pytest.mark.parametrize(
    ("answer", "problem"),
    [
        (b"HTTP/1.1 200 OK\r\ncontent-length: 100\r\n\r\nhalf", "could not be fetched"),
        (b"no HTTP\r\n\r\n", "could not be fetched"),
        (b"", "could not be fetched"),
        (b"HTTP/1.1 200 OK\r\ncontent-length: 4\r\n\r\nrows", None),
    ],
    ids=["half", "no HTTP", "nothing", "whole"],
)
def test_a_server_log_that_does_not_come_whole_is_a_note_and_no_error(answer, problem, tmp_path):
    folder = RunFolder(tmp_path / "r1")
    folder.create()
    with socket.create_server(("127.0.0.1", 0)) as listener:

        def serve():
            sock, _ = listener.accept()
            with sock:
                sock.recv(65536)
                sock.sendall(answer)

        serving = threading.Thread(target=serve)
        serving.start()
        notes = fetch_server_log(f"http://127.0.0.1:{listener.getsockname()[1]}", "r1", folder)
        serving.join()

    assert [problem in note for note in notes] == [True] * (problem is not None)
    assert folder.part("target", 0, "all").exists() == (problem is None)
