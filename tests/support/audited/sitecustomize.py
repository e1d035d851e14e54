"""Python imports this by itself in each process of an audited command, forked ones inherit it: it writes down what they do.

A JSON line for each event that could run what a file or a socket holds, or reach for a network: its name, the process's
command, its arguments as text, and the files of the functions that led to it, innermost first.
"""

import json
import os
import sys

LOG = os.environ.get("SAMEBITS_TEST_AUDIT", "")
LOADED = ("pickle.find_class", "marshal.loads", "marshal.load")
SOCKETS = ("socket.__new__", "socket.bind", "socket.connect", "socket.sendto", "socket.sendmsg", "socket.gethostbyname")
IMPORTS = "<frozen importlib"


def note(event: str, arguments: tuple[object, ...]) -> None:
    """Write down an event; what an audit hook raises would end the call."""
    if event not in LOADED and event not in SOCKETS and event != "exec":
        return
    frame, files = sys._getframe().f_back, []
    while frame is not None:
        files.append(frame.f_code.co_filename)
        frame = frame.f_back
    if event.startswith("marshal") and files and files[0].startswith(IMPORTS):
        return  # a compiled module, from Python's own cache
    if event == "exec":
        arguments = (getattr(arguments[0], "co_filename", ""),)
    shown = [repr(one)[:200] for one in arguments[event in SOCKETS :]]  # without the socket itself
    line = json.dumps({"event": event, "pid": os.getpid(), "what": shown, "files": files[:60]})
    descriptor = os.open(LOG, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
    os.write(descriptor, f"{line}\n".encode())
    os.close(descriptor)


if LOG:
    sys.addaudithook(note)
