"""A cable that holds packets back and loses some: `python -m tests.support.relay SWITCH PORT HOST DEVICE`.

SWITCH and HOST are processes in two network namespaces. A virtual network card is made in each, and what one sends the
other receives. Each line `[delay_s, loss]` on standard input says how well; at the end of the input both cards are gone.
For a kernel without netem.
"""

from __future__ import annotations

import fcntl
import json
import os
import random
import select
import struct
import sys
import time
from collections import deque

from tests.support.warm import enter

SET_INTERFACE = 0x400454CA  # TUNSETIFF
PLAIN_FRAMES = 0x1002  # IFF_TAP | IFF_NO_PI
MOST_BYTES = 1 << 16
AT_ONCE = 64


def card(process: int, name: str) -> int:
    """A descriptor from which the frames of a new network card in a process' namespace are read."""
    enter(process, "net")
    descriptor = os.open("/dev/net/tun", os.O_RDWR | os.O_NONBLOCK)
    fcntl.ioctl(descriptor, SET_INTERFACE, struct.pack("16sH", name.encode(), PLAIN_FRAMES))
    return descriptor


def carry(cards: tuple[int, int]) -> None:
    """Hand over frames in both directions until the input ends."""
    other = {cards[0]: cards[1], cards[1]: cards[0]}
    delay_s, loss, chance = 0.0, 0.0, random.Random(0)
    waiting: deque[tuple[float, int, bytes]] = deque()
    while True:
        left = max(0.0, waiting[0][0] - time.monotonic()) if waiting else None
        for ready in select.select([*cards, 0], [], [], left)[0]:
            if ready == 0:
                line = sys.stdin.readline()
                if not line:
                    return
                delay_s, loss = json.loads(line)
                print("disturbed", flush=True)
                continue
            for frame in frames(ready):
                if chance.random() >= loss:
                    waiting.append((time.monotonic() + delay_s, other[ready], frame))
        while waiting and waiting[0][0] <= time.monotonic():
            _, to, frame = waiting.popleft()
            try:
                os.write(to, frame)
            except OSError:  # the card is down, or its queue is full: the frame is lost, as on a cable
                continue


def frames(card: int) -> list[bytes]:
    """The frames that wait at a card, but not more than a few."""
    found: list[bytes] = []
    try:
        while len(found) < AT_ONCE:
            found.append(os.read(card, MOST_BYTES))
    except OSError:  # no more of them, or the card is down
        pass
    return found


def main() -> None:
    switch, port, host, device = sys.argv[1:]
    at_the_host = card(int(host), device)
    at_the_switch = card(int(switch), port)  # and there this process stays, so that a host's end is not its own
    print("ready", flush=True)
    carry((at_the_host, at_the_switch))


if __name__ == "__main__":
    main()
