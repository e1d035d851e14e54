"""All holders of a key derive the same certificate, which OpenSSL accepts, and no other key gives it."""

import contextlib
import hashlib
import shutil
import ssl
import subprocess

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from lockstep.nodes import p256
from lockstep.nodes.identity import _pem, identity
from lockstep.nodes.key import Key

KEY = Key(b"the same key on every node of the run")


def shaken(server, client):
    """Two contexts shake hands in memory; the client's TLS object."""
    up, down = ssl.MemoryBIO(), ssl.MemoryBIO()
    ends = [client.wrap_bio(down, up), server.wrap_bio(up, down, server_side=True)]
    for _ in range(3):
        for end in ends:
            with contextlib.suppress(ssl.SSLWantReadError):
                end.do_handshake()
    for end in ends:
        end.do_handshake()
    return ends[0]


def test_a_key_gives_the_same_identity_everywhere():
    assert identity(KEY) == identity(Key(KEY.secret))
    assert identity(KEY) != identity(Key(KEY.secret + b"."))


def test_the_certificate_stays_the_same_from_version_to_version():
    """Nodes with other versions of lockstep shall be told so, and not that their key is another."""
    assert (
        hashlib.sha256(identity(KEY).certificate).hexdigest()
        == "446f7783510486e8fe87a1b0967e4f07583baab5e839c222a95c421c2286dc01"
    )


def test_both_sides_have_shown_the_certificate_over_tls_1_3():
    own = identity(KEY)
    client = shaken(own.context(is_gate=True), own.context(is_gate=False))
    assert client.version() == "TLSv1.3"
    assert client.getpeercert(binary_form=True) == own.certificate


def test_another_key_is_refused_by_both_sides():
    own, other = identity(KEY), identity(Key.made())
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(own.context(is_gate=True), other.context(is_gate=False))
    trusting = other.context(is_gate=False)
    trusting.verify_mode = ssl.CERT_NONE
    with pytest.raises(ssl.SSLCertVerificationError):
        shaken(own.context(is_gate=True), trusting)
    without = ssl.SSLContext(ssl.PROTOCOL_TLS_CLIENT)
    without.check_hostname, without.verify_mode = False, ssl.CERT_NONE
    with pytest.raises(ssl.SSLError, match="PEER_DID_NOT_RETURN_A_CERTIFICATE"):
        shaken(own.context(is_gate=True), without)


def test_an_older_tls_is_refused():
    own = identity(KEY)
    older = own.context(is_gate=False)
    older.minimum_version = older.maximum_version = ssl.TLSVersion.TLSv1_2
    with pytest.raises(ssl.SSLError):
        shaken(own.context(is_gate=True), older)


@pytest.mark.skipif(shutil.which("openssl") is None, reason="needs the openssl command")
@pytest.mark.parametrize("number", range(8))
def test_openssl_finds_key_and_signature_sound(tmp_path, number):
    own = identity(Key(KEY.secret + bytes([number])))
    certificate, key = tmp_path / "c.pem", tmp_path / "k.pem"
    certificate.write_text(_pem("CERTIFICATE", own.certificate))
    key.write_text(_pem("EC PRIVATE KEY", own.private_key))
    strictly = ["-check_ss_sig", "-x509_strict", "-CAfile", certificate, certificate]
    subprocess.run(["openssl", "verify", *strictly], check=True, capture_output=True)
    checked = subprocess.run(
        ["openssl", "ec", "-in", key, "-check", "-noout"], check=True, capture_output=True, text=True
    )
    assert "EC Key valid" in checked.stdout + checked.stderr


def test_the_identity_does_not_show_its_private_key():
    own = identity(KEY)
    assert own.private_key.hex() not in repr(own) and str(own.private_key) not in repr(own)


def test_the_curve_has_the_points_that_nist_lists():
    """From the point multiplication test vectors for P-256: k = 2, and k = N - 1."""
    assert p256.times(1) == p256.G
    assert p256.times(2)[0] == 0x7CF27B188D034F7E8A52380304B51AC3C08969E277F21B35A60B48FC47669978
    assert p256.times(p256.N - 1) == (p256.G[0], p256.P - p256.G[1])


@settings(max_examples=20)
@given(st.integers(1, p256.N - 1))
def test_every_multiple_lies_on_the_curve(scalar):
    b = (p256.G[1] ** 2 - p256.G[0] ** 3 - p256.A * p256.G[0]) % p256.P
    x, y = p256.times(scalar)
    assert (y * y - x**3 - p256.A * x - b) % p256.P == 0


def test_a_signature_is_that_of_rfc_6979():
    """A.2.5: P-256 with SHA-256, message "sample"; k is the RFC's."""
    private = 0xC9AFA9D845BA75166B5C215767B1D6934E50C3DB36E89B127B8A622B120F6721
    digest = 0xAF2BDBE1AA9B6EC1E2ADE1D694F41FC71A831D0268E9891562113D8A62ADD1BF
    nonce = 0xA6E3C57DD01ABE90086538398355DD4C3B17AA873382B0F24D6129493D8AAD60
    assert p256.sign(private, digest, nonce) == (
        0xEFD48B2AACB6A8FD1140DD9CD45E81D69D2C877B56AAF991C34D0EA84EAF3716,
        0xF7CB1C942D657C41D436C7A1B6E29F65F3E900DBB9AFF4064DC4AB2F843ACDA8,
    )


@pytest.mark.parametrize("scalar", [0, p256.N, -1])
def test_a_number_that_is_no_private_key_is_refused(scalar):
    with pytest.raises(ValueError, match="1 to N - 1"):
        p256.times(scalar)
