"""Where ranks of all nodes meet: torch's store, question by question, over sockets that they inherit, and behind them the star.

    rank ---- a socket ----> launcher ---- the star ----> node 0's launcher: Keys
    rank <------------------ launcher <------------------ the answer, when the keys are there

A rank gets the bell (`NodeMeeting.bell`), one end of a pair of sockets; whoever wants to ask makes a pair of its own and sends one end
through it. So nothing listens, and threads and children of a rank ask side by side. A question names what is to be done (`do`), with
which keys, and has values behind it as bytes, as the node packed them.
"""

from __future__ import annotations

import itertools
import socket
import zlib
from collections import defaultdict
from collections.abc import Callable, Hashable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from samebits.launcher.nodes.star import HostStar, Star
from samebits.launcher.nodes.streams import Entrance, Exit
from samebits.launcher.nodes.wire import Message, Wire, WireEnded
from samebits.protocol.message import Unframing, framed

FEWEST_PACKED, FEWEST_KEPT = 512, 256
"""Of so many bytes a value is packed, and kept by the nodes to which it went."""
MOST_VALUE_BYTES = 8 << 20
"""What torch's own store takes."""
MOST_ANSWER_BYTES = 15 << 20
"""Of all values that are requested at once: a frame has a little more."""
HAS_IT = -1
"""As a size: this node was sent the value before."""
Answer = Callable[[dict[str, Any], bytes], None]


def to_travel(value: bytes) -> bytes:
    """A value as it goes between nodes. Raises ValueError for one that is too long."""
    if len(value) > MOST_VALUE_BYTES:
        raise ValueError(f"a value of {len(value)} bytes, and {MOST_VALUE_BYTES} are the most")
    if len(value) >= FEWEST_PACKED and len(small := zlib.compress(value, 1)) < len(value):
        return b"\1" + small
    return b"\0" + value


def from_travel(travelling: bytes) -> bytes:
    """The inverse."""
    if travelling[:1] == b"\0":
        return travelling[1:]
    return zlib.decompressobj().decompress(travelling[1:], MOST_VALUE_BYTES)


@dataclass(eq=False)
class _Waiting:
    node: Hashable
    keys: Sequence[str]
    missing: set[str]
    answer: Answer
    is_get: bool


@dataclass
class Keys:
    """Those of one round."""

    _values: dict[str, tuple[bytes, int]] = field(default_factory=dict)
    """As they travel, each with a number that no other value has."""
    _num_values: int = 0
    _waiting: dict[str, list[_Waiting]] = field(default_factory=lambda: defaultdict(list))
    _sent: dict[Hashable, dict[str, int]] = field(default_factory=lambda: defaultdict(dict))

    def ask(self, node: Hashable, message: dict[str, Any], blob: bytes, answer: Answer) -> None:
        """Answer a question of a rank, at once or once its keys are there.

        Args:
            node: where it is.
            message: `do`, `keys`, and what else that takes.
            blob: the values, one after the other as `sizes` says; of `set` and `append` the only one.
            answer: takes the answer, once.
        """
        keys = [str(key) for key in message.get("keys", [])]
        match message["do"]:
            case "get" | "wait" as do:
                self._wait(_Waiting(node, keys, set(keys) - self._values.keys(), answer, do == "get"))
            case "set":
                self._set(keys[0], blob)
                answer({}, b"")
            case "append":
                self._set(keys[0], to_travel(self._value(keys[0]) + from_travel(blob)))
                answer({}, b"")
            case "add":
                total = int(self._value(keys[0]) or b"0") + int(message["amount"])
                self._set(keys[0], to_travel(str(total).encode()))
                answer({"found": total}, b"")
            case "compare_set":
                answer({}, self._compare_set(keys[0], blob[: message["sizes"][0]], blob[message["sizes"][0] :]))
            case "check":
                answer({"found": all(key in self._values for key in keys)}, b"")
            case "delete":
                answer({"found": self._values.pop(keys[0], None) is not None}, b"")
            case "list":
                answer({"found": [*self._values]}, b"")

    def _value(self, key: str) -> bytes:
        return from_travel(self._values[key][0]) if key in self._values else b""

    def _set(self, key: str, travelling: bytes) -> None:
        self._num_values += 1
        self._values[key] = travelling, self._num_values
        for waiting in self._waiting.pop(key, []):
            waiting.missing.discard(key)
            if not waiting.missing:
                # Another key that it had may have been deleted meanwhile.
                waiting.missing |= set(waiting.keys) - self._values.keys()
                self._wait(waiting)

    def _wait(self, waiting: _Waiting) -> None:
        if not waiting.missing:
            waiting.answer(*(self._get(waiting) if waiting.is_get else ({}, b"")))
        for key in waiting.missing:
            self._waiting[key].append(waiting)

    def _get(self, waiting: _Waiting) -> tuple[dict[str, Any], bytes]:
        if (size := sum(len(self._values[key][0]) for key in waiting.keys)) > MOST_ANSWER_BYTES:
            return {"why": f"values of {size} bytes at once, and {MOST_ANSWER_BYTES} are the most"}, b""
        # [Note: a value goes to each node once]
        # With 1,024 ranks each reads an address of 8 kB of every other one: 8.8 GB from node 0, 0.2 GB this way.
        sizes, values, sent = [], [], self._sent[waiting.node]
        for key in waiting.keys:
            value, number = self._values[key]
            if sent.get(key) == number:
                sizes.append(HAS_IT)
                continue
            if len(value) >= FEWEST_KEPT:
                sent[key] = number
            sizes.append(len(value))
            values.append(value)
        return {"sizes": sizes}, b"".join(values)

    def _compare_set(self, key: str, expected: bytes, desired: bytes) -> bytes:
        """The value afterwards, as torch's own store returns it: of a key that is missing, what was expected."""
        is_there, wanted = key in self._values, from_travel(expected)
        if self._value(key) != wanted or (not is_there and wanted):
            return self._values[key][0] if is_there else expected
        self._set(key, desired)
        return desired


QUESTION, ANSWER = "keys", "answer"


def hold_keys(star: HostStar) -> None:
    """Answer what the ranks of all nodes ask, on node 0. The keys of a round are gone when somebody asks in a later one.

    Ranks of another node may ask before those of node 0 begin.
    """
    rounds: dict[int, Keys] = {}

    def take(node: str, message: dict[str, Any], blob: bytes) -> None:
        number = int(message["round"])
        for old in [one for one in rounds if one < number]:
            del rounds[old]
        keys = rounds.setdefault(number, Keys())
        of = {"kind": ANSWER, "round": number, "of": message["of"]}

        try:
            keys.ask(node, message, blob, lambda found, values: star.send_to(node, {**of, **found}, values))
        # The value is too long, or what is added to is no number.
        except ValueError as error:
            star.send_to(node, {**of, "why": str(error)})

    star.handlers[QUESTION] = take


class NodeMeeting:
    """That of the ranks of one node in one round.

    Args:
        star: this node's.
        round: the number of the round.
        exit: on node 0, where streams of other nodes come out.
    """

    def __init__(self, star: Star, round: int, exit: Exit | None = None) -> None:
        self._star, self._round, self._exit = star, round, exit
        self._ours, self.bell = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        self._ours.setblocking(False)
        self._numbers = itertools.count()
        self._ranks: dict[int, Wire] = {}
        self._asked: dict[int, tuple[str, list[str]]] = {}
        """What each of them waits for."""
        self._kept: dict[str, bytes] = {}
        """Values that this node was sent, and is not sent again."""
        self._entrance: Entrance | None = None
        star.handlers[ANSWER] = self._answered
        star.loop.watch(self._ours, self._rung)

    def serve(self, listener: socket.socket) -> bool:
        """Let a rank's own connections at MASTER_PORT come out at node 0; False: this is it, where a store is to serve them.

        Args:
            listener: listens on 127.0.0.1; used, not taken over.
        """
        if self._exit is None and self._entrance is None:
            self._entrance = Entrance(self._star, listener, "MASTER_PORT")
        return self._exit is None

    def lead_out(self, connect: Callable[[], socket.socket | None]) -> None:
        """On node 0: how to connect to that store, for ranks of other nodes; None where that is impossible."""
        if self._exit is not None:
            self._exit.connect = lambda _to: connect()

    def close(self) -> None:
        """Answer nobody any more."""
        if self._exit is not None:
            self._exit.close()
        if self._entrance is not None:
            self._entrance.close()
        self._star.handlers.pop(ANSWER, None)
        self._star.loop.forget(self._ours)
        for number in list(self._ranks):
            self._forget(number)
        self._ours.close()
        self.bell.close()

    def _rung(self, _mask: int) -> None:
        while True:
            try:
                _, descriptors, _, _ = socket.recv_fds(self._ours, 1, 4)
            except BlockingIOError:
                return
            for descriptor in descriptors:
                end, number = socket.socket(fileno=descriptor), next(self._numbers)
                self._ranks[number] = wire = Wire(end, framed, Unframing().open)
                wire.attach(self._star.loop, partial(self._questions, number), partial(self._forget, number))

    def _forget(self, number: int, _why: str = "") -> None:
        self._ranks.pop(number).close()

    def _questions(self, number: int, found: list[Message]) -> None:
        for message, blob in found:
            self._ask(number, message, blob)

    def _ask(self, number: int, message: dict[str, Any], blob: bytes) -> None:
        """Pass a question on; the values in it as they travel."""
        do = message["do"]
        self._asked[number] = do, message.get("keys", [])
        try:
            if do in ("set", "append"):
                blob = to_travel(blob)
            elif do == "compare_set":
                parts = [to_travel(blob[: message["sizes"][0]]), to_travel(blob[message["sizes"][0] :])]
                message, blob = {**message, "sizes": [len(parts[0])]}, b"".join(parts)
            self._star.send({**message, "kind": QUESTION, "round": self._round, "of": number}, blob)
        # The value is too long.
        except ValueError as error:
            self._send(number, {"why": str(error)}, b"")

    def _answered(self, _node: str, message: dict[str, Any], blob: bytes) -> None:
        number = message["of"]
        if message["round"] != self._round or number not in self._asked:
            return
        do, keys = self._asked.pop(number)
        if "why" in message:
            pass
        elif do == "get":
            values = self._values(keys, message["sizes"], blob)
            message, blob = {"sizes": [len(one) for one in values]}, b"".join(values)
        elif do == "compare_set":
            blob = from_travel(blob)
        self._send(number, message, blob)

    def _values(self, keys: list[str], sizes: list[int], blob: bytes) -> list[bytes]:
        found, at = [], 0
        for key, size in zip(keys, sizes, strict=True):
            if size == HAS_IT:
                found.append(self._kept[key])
                continue
            found.append(from_travel(blob[at : at + size]))
            if size >= FEWEST_KEPT:
                self._kept[key] = found[-1]
            at += size
        return found

    def _send(self, number: int, message: dict[str, Any], blob: bytes) -> None:
        if (wire := self._ranks.get(number)) is None:
            # It has ended, or waits no longer; what came is kept for the others here.
            return
        with suppress(WireEnded):  # reading raises it too, and forgets the rank
            wire.send(message, blob)
