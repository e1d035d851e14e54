"""The kernel counts what a process sends and receives."""

import os
import socket
import subprocess
import sys

from samebits.machine.socket_bytes import socket_bytes

TWENTY_KB = """
import socket, sys
here = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
here.sendall(bytes(20_000))
here.recv(1)
sys.stdin.read()
"""


def test_the_bytes_of_another_process_are_counted_and_those_of_a_process_without_connections_are_none():
    with socket.create_server(("127.0.0.1", 0)) as server:
        command = [sys.executable, "-c", TWENTY_KB, str(server.getsockname()[1])]
        with subprocess.Popen(command, stdin=subprocess.PIPE) as process:
            there, _ = server.accept()
            with there:
                left = 20_000
                while left:
                    left -= len(there.recv(left))
                there.sendall(b"x")
                while (counted := socket_bytes([process.pid])) is not None and counted < 20_001:
                    pass  # the kernel has not seen the last acknowledgement yet
                assert counted is not None
                assert 20_001 <= counted < 20_100
                assert process.stdin is not None
                process.stdin.close()
    assert socket_bytes([process.pid]) == 0
    assert isinstance(socket_bytes([os.getpid(), process.pid]), int)
