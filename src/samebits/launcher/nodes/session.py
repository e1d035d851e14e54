"""How two launchers prove to each other that they have the run's key, and how what follows on that connection is kept whole. Pure.

    caller -> node 0    MAGIC                                             16 bytes
    node 0 -> caller    MAGIC, whether it has a key, a nonce              49 bytes
    caller -> node 0    a nonce, the address that it called, its proof    82 bytes
    node 0 -> caller    its proof, or why not                             32 bytes
    both                frames: a length, a content, a tag under a key of this connection and direction

Both begin, so a caller soon knows what answers, also a program that waits for its client's first word. A proof is HMAC-SHA256
under the run's key over the role, both nonces and the address. A tag covers the frame's running number, which both sides count, so a frame that was changed, repeated, left
out, or sent back to its sender has no tag that fits. A length says what is to come; memory grows with what has come.
"""

from __future__ import annotations

import hmac
import ipaddress
import secrets
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field

from samebits.protocol.message import Unframing, framed

MAGIC = b"samebits star 3\n"
NONCE_BYTES, ADDRESS_BYTES, PROOF_BYTES = 32, 18, 32
GREETING_BYTES = len(MAGIC) + 1 + NONCE_BYTES
HELLO_BYTES = len(MAGIC) + NONCE_BYTES + ADDRESS_BYTES + PROOF_BYTES
_HAS_KEY, _HAS_NONE = b"k", b"n"
_CALLER, _HOST = b"caller", b"node 0"
ASKS_FOR_SEAL = (MAGIC + b"the sealed key, please").ljust(HELLO_BYTES, b".")
"""What a caller sends instead of its hello when it has no key (`key`)."""
WRONG_KEY, WRONG_ADDRESS = b"wrong key".ljust(PROOF_BYTES, b"\0"), b"wrong address".ljust(PROOF_BYTES, b"\0")
"""What node 0 answers instead of its proof."""


class NotSamebits(ValueError):  # noqa: N818 - a state of the other side
    """What answers is no node 0 of this version."""


class HasNoKey(ValueError):  # noqa: N818
    """Node 0 says that it cannot use its own key."""


class WrongKey(ValueError):  # noqa: N818
    """The other side has another key, or none."""


class WrongAddress(ValueError):  # noqa: N818
    """The caller meant another address: somebody leads it here."""


@dataclass(frozen=True)
class SessionKeys:
    """The keys of one connection, one for each direction; not shown."""

    from_caller: bytes = field(repr=False)
    from_host: bytes = field(repr=False)


@dataclass(frozen=True)
class HostHello:
    """Node 0's side of one connection.

    Args:
        key: the run's; None: it cannot be used here.
    """

    key: bytes | None = field(repr=False)
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    @property
    def greeting(self) -> bytes:
        """What it sends first."""
        return MAGIC + (_HAS_NONE if self.key is None else _HAS_KEY) + self.nonce

    def answer(self, hello: bytes, own: Collection[bytes]) -> tuple[bytes, SessionKeys]:
        """What it sends to a caller with the run's key, and the keys of the connection.

        Args:
            hello: what the caller sent, `HELLO_BYTES`.
            own: the addresses at which node 0 may be called, as `address_bytes`.

        Raises:
            WrongKey: the caller does not have the key.
            WrongAddress: it has, and meant somebody else.
        """
        rest = hello.removeprefix(MAGIC)
        nonce, address = rest[:NONCE_BYTES], rest[NONCE_BYTES:-PROOF_BYTES]
        both = self.nonce + nonce + address
        # [Note: the caller proves first]
        # Whoever has no key gets nothing of node 0 against which keys could be tried at home.
        if self.key is None or not hmac.compare_digest(hello[-PROOF_BYTES:], _mac(self.key, _CALLER, both)):
            raise WrongKey
        if address not in own:
            raise WrongAddress
        return _mac(self.key, _HOST, both), _session(self.key, both)


@dataclass(frozen=True)
class CallerHello:
    """The other side.

    Args:
        key: the run's.
        address: the one that it called, as `address_bytes`.
    """

    key: bytes = field(repr=False)
    address: bytes
    nonce: bytes = field(default_factory=lambda: secrets.token_bytes(NONCE_BYTES))

    def hello(self, greeting: bytes) -> bytes:
        """What it sends, MAGIC before it has the greeting. Raises NotSamebits, HasNoKey."""
        both = nonce_in(greeting) + self.nonce + self.address
        return MAGIC + self.nonce + self.address + _mac(self.key, _CALLER, both)

    def session(self, greeting: bytes, answer: bytes) -> SessionKeys:
        """The keys of the connection, once node 0 has proved itself. Raises WrongKey, WrongAddress."""
        if answer == WRONG_ADDRESS:
            raise WrongAddress
        both = nonce_in(greeting) + self.nonce + self.address
        if not hmac.compare_digest(answer, _mac(self.key, _HOST, both)):
            raise WrongKey
        return _session(self.key, both)


def nonce_in(greeting: bytes) -> bytes:
    """Node 0's nonce. Raises NotSamebits, HasNoKey."""
    if len(greeting) != GREETING_BYTES or not greeting.startswith(MAGIC):
        raise NotSamebits
    if greeting[len(MAGIC) : len(MAGIC) + 1] != _HAS_KEY:
        raise HasNoKey
    return greeting[-NONCE_BYTES:]


def address_bytes(address: str, port: int) -> bytes:
    """An address and a port, of fixed length; an IPv4 address as IPv6 has it."""
    number = ipaddress.ip_address(address)
    wide = number.packed if number.version == 6 else b"\0" * 10 + b"\xff\xff" + number.packed
    return wide + port.to_bytes(2, "big")


def _mac(key: bytes, role: bytes, both: bytes) -> bytes:
    return hmac.digest(key, MAGIC + role + b"\0" + both, "sha256")


def _session(key: bytes, both: bytes) -> SessionKeys:
    return SessionKeys(_mac(key, b"from caller", both), _mac(key, b"from node 0", both))


TAG_BYTES = 16
MOST_BYTES = 16 << 20
"""Of a frame's content: twice what torch's store takes as one value."""


class Sealer:
    """Makes the frames of one direction.

    Args:
        key: of this connection and direction.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0

    def seal(self, content: bytes) -> bytes:
        """The next frame. Raises ValueError for more than `MOST_BYTES`."""
        if len(content) > MOST_BYTES:
            raise ValueError(f"a message of {len(content)} bytes, and {MOST_BYTES} are the most")
        frame = framed(content + _tag(self._key, self._number, content))
        self._number += 1
        return frame


class Opener:
    """Reads the frames of one direction, in pieces of any size.

    Args:
        key: of this connection and direction.
    """

    def __init__(self, key: bytes) -> None:
        self._key = key
        self._number = 0
        self._frames = Unframing(MOST_BYTES + TAG_BYTES)

    def open(self, data: bytes) -> Iterator[bytes]:
        """The contents that are whole now. Raises ValueError; nothing of that connection may be used afterwards."""
        for frame in self._frames.open(data):
            content = frame[:-TAG_BYTES]
            if not hmac.compare_digest(frame[-TAG_BYTES:], _tag(self._key, self._number, content)):
                raise ValueError("a frame whose tag does not fit")
            self._number += 1
            yield content


def _tag(key: bytes, number: int, content: bytes) -> bytes:
    return hmac.digest(key, number.to_bytes(8, "big") + content, "sha256")[:TAG_BYTES]
