"""Who may join a run: whoever holds the one certificate that all nodes derive from the run's key.

```
key ── HMAC-SHA512 ──> private key ──> certificate        the same bytes on every node
```

Both sides of a connection show this certificate and trust no other, so each knows that the other one has the key. The key
itself never travels. TLS 1.3 makes fresh keys for every connection: who learns the run's key later cannot read what was sent.
The certificate has no dates that a wrong clock could miss.
"""

from __future__ import annotations

import base64
import hashlib
import hmac
import os
import ssl
from dataclasses import dataclass
from typing import TYPE_CHECKING

from lockstep.nodes import p256

if TYPE_CHECKING:
    from lockstep.nodes.key import Key

EC_KEY, P256, SHA256_SIGNED, NAME = "2a8648ce3d0201", "2a8648ce3d030107", "2a8648ce3d040302", "550403"
"""Object identifiers of X.509: id-ecPublicKey, prime256v1, ecdsa-with-SHA256, commonName."""


@dataclass(frozen=True)
class Identity:
    """A private key and its certificate, both DER; the private key is not shown."""

    certificate: bytes
    private_key: bytes

    def __repr__(self) -> str:
        return "Identity(hidden)"

    def context(self, *, is_gate: bool) -> ssl.SSLContext:
        """What one side of a connection demands: TLS 1.3, and this certificate from the other side."""
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER if is_gate else ssl.PROTOCOL_TLS_CLIENT)
        context.minimum_version = ssl.TLSVersion.TLSv1_3
        context.check_hostname = False  # the certificate is the name: nobody else holds one that is trusted
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(cadata=self.certificate)
        if is_gate:
            context.num_tickets = 0  # each connection proves the key
        _load_from_memory(context, self)
        return context


def identity(key: Key) -> Identity:
    """Derive the identity that all holders of `key` share."""
    private = _number(key, b"private key")
    x, y = p256.times(private)
    public = b"\x04" + x.to_bytes(32, "big") + y.to_bytes(32, "big")
    name = _seq(_der(0x31, _seq(_oid(NAME), _der(0x0C, b"lockstep run"))))
    valid = _seq(_der(0x17, b"700101000000Z"), _der(0x18, b"99991231235959Z"))
    owner = _seq(_seq(_oid(EC_KEY), _oid(P256)), _bits(public))
    number = int.from_bytes(hashlib.sha256(public).digest()[:8], "big")
    signed = _seq(_der(0xA0, _int(2)), _int(number), _seq(_oid(SHA256_SIGNED)), name, valid, name, owner)
    digest = hashlib.sha256(signed).digest()
    signature = p256.sign(private, int.from_bytes(digest, "big"), _number(key, b"nonce " + digest))
    certificate = _seq(signed, _seq(_oid(SHA256_SIGNED)), _bits(_seq(*map(_int, signature))))
    private_key = _seq(
        _int(1), _der(0x04, private.to_bytes(32, "big")), _der(0xA0, _oid(P256)), _der(0xA1, _bits(public))
    )
    return Identity(certificate, private_key)


def _number(key: Key, purpose: bytes) -> int:
    """A number 1 … N - 1 that only holders of the key can compute."""
    mixed = hmac.digest(key.secret, b"lockstep 1 " + purpose, "sha512")
    return int.from_bytes(mixed, "big") % (p256.N - 1) + 1


def _load_from_memory(context: ssl.SSLContext, own: Identity) -> None:
    """Give `context` the private key through a file that has no name: ssl takes paths only."""
    descriptor = os.memfd_create("lockstep", os.MFD_CLOEXEC)
    try:
        with open(descriptor, "w", closefd=False) as file:
            file.write(_pem("EC PRIVATE KEY", own.private_key) + _pem("CERTIFICATE", own.certificate))
        context.load_cert_chain(f"/proc/self/fd/{descriptor}")
    finally:
        os.close(descriptor)


def _pem(label: str, der: bytes) -> str:
    return f"-----BEGIN {label}-----\n{base64.encodebytes(der).decode()}-----END {label}-----\n"


def _der(tag: int, content: bytes) -> bytes:
    size = len(content)
    length = (
        bytes([size]) if size < 0x80 else b"\x81" + bytes([size]) if size < 0x100 else b"\x82" + size.to_bytes(2, "big")
    )
    return bytes([tag]) + length + content


def _seq(*parts: bytes) -> bytes:
    return _der(0x30, b"".join(parts))


def _int(number: int) -> bytes:
    return _der(0x02, number.to_bytes(number.bit_length() // 8 + 1, "big"))


def _oid(coded: str) -> bytes:
    return _der(0x06, bytes.fromhex(coded))


def _bits(content: bytes) -> bytes:
    return _der(0x03, b"\0" + content)
