"""The curve P-256 in whole numbers: a point and a signature, computed once when a run of several nodes begins.

The standard library speaks TLS but makes no keys. Computing a public key and one signature takes 20 ms in plain Python,
where a package for it would be the largest that lockstep needs. These functions take a time that depends on the secret:
nobody but the processes of the same user is close enough to measure one call. TLS itself computes with OpenSSL.

P-256, because every build of OpenSSL has it, those in FIPS mode too.
"""

from __future__ import annotations

P = 0xFFFFFFFF00000001000000000000000000000000FFFFFFFFFFFFFFFFFFFFFFFF
"""The field."""
N = 0xFFFFFFFF00000000FFFFFFFFFFFFFFFFBCE6FAADA7179E84F3B9CAC2FC632551
"""How many multiples the generator has."""
A = P - 3
G = (
    0x6B17D1F2E12C4247F8BCE6E563A440F277037D812DEB33A0F4A13945D898C296,
    0x4FE342E2FE1A7F9B8EE7EB4A7C0F9E162BCE33576B315ECECBB6406837BF51F5,
)

Point = tuple[int, int]


def times(scalar: int) -> Point:
    """The public key of a private key: the generator, added to itself; `scalar` is 1 … N - 1."""
    if not 0 < scalar < N:
        raise ValueError(f"the scalar must be 1 to N - 1, but is {scalar}")
    total: Point | None = None
    power = G
    while scalar:
        if scalar & 1:
            total = power if total is None else _sum(total, power)
        power = _sum(power, power)
        scalar >>= 1
    assert total is not None
    return total


def _sum(one: Point, other: Point) -> Point:
    """Two points of the curve, never inverse to each other: multiples below N are not."""
    if one == other:
        slope = (3 * one[0] * one[0] + A) * pow(2 * one[1], -1, P) % P
    else:
        slope = (other[1] - one[1]) * pow(other[0] - one[0], -1, P) % P
    x = (slope * slope - one[0] - other[0]) % P
    return x, (slope * (one[0] - x) - one[1]) % P


def sign(private: int, digest: int, nonce: int) -> tuple[int, int]:
    """The ECDSA signature (r, s) of a digest. Two digests must never share a `nonce`: that would reveal the private key."""
    r = times(nonce)[0] % N
    return r, pow(nonce, -1, N) * (digest + r * private) % N
