"""An S3 server (moto's) on loopback, in a process of its own; it ends with its standard input."""

import sys

from moto.moto_server.threaded_moto_server import ThreadedMotoServer

server = ThreadedMotoServer("127.0.0.1", 0, verbose=False)
server.start()
print(server.get_host_and_port()[1], flush=True)
sys.stdin.read()
server.stop()
