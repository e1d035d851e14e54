"""A program whose connections to node 0's port have no key, ten kinds of them: `python -c STRANGERS PORT EACH`."""

STRANGERS = """
import os, socket, sys
from samebits.launcher.nodes.session import GREETING_BYTES, HELLO_BYTES, CallerHello, address_bytes

port, each = int(sys.argv[1]), int(sys.argv[2])
here, replayed = address_bytes("127.0.0.1", port), []

def hello(greeting):
    replayed.append(CallerHello(b"a wrong key" * 4, here).hello(greeting))
    return replayed[-1]

KINDS = {
    "random": lambda end, greeting: end.sendall(os.urandom(300)),
    "http": lambda end, greeting: end.sendall(b"GET / HTTP/1.1\\r\\nHost: x\\r\\n\\r\\n".ljust(HELLO_BYTES)),
    "wrong key": lambda end, greeting: end.sendall(hello(greeting)),
    "replayed": lambda end, greeting: end.sendall(replayed[0]),
    "reflected": lambda end, greeting: end.sendall((greeting * 2)[:HELLO_BYTES]),
    "half": lambda end, greeting: end.sendall(hello(greeting)[:40]),
    "slow": lambda end, greeting: end.sendall(b"l"),
    "silent": lambda end, greeting: None,
    "gone": lambda end, greeting: end.close(),
    "half gone": lambda end, greeting: end.sendall(b"l") or end.shutdown(socket.SHUT_WR),
}
for _ in range(each // 10 or 1):
    ends = []
    for act in [*KINDS.values()] * min(each, 10):
        end = socket.create_connection(("127.0.0.1", port))
        end.settimeout(60)
        try:
            act(end, end.recv(GREETING_BYTES, socket.MSG_WAITALL))
        except OSError:  # closed before it had said all
            pass
        ends.append(end)
    for kind, end in zip([*KINDS] * 10, ends):
        try:
            while end.fileno() >= 0 and (piece := end.recv(4096)):
                assert piece == b"wrong key".ljust(32, b"\\0"), kind
        except OSError as error:
            assert not isinstance(error, TimeoutError), kind
        end.close()
print(each * len(KINDS))
"""
