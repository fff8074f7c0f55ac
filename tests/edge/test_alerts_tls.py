"""The door with certificates: whose is taken, and what happens when they change."""

from __future__ import annotations

import asyncio
import ssl
from dataclasses import dataclass, replace
from datetime import datetime, timedelta, timezone
from pathlib import Path

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

from stanch.edge.alerts_access import Certificates
from stanch.edge.errors import FileError
from tests.edge.alerts_world import OTHER, SMALL, World, alert, payload, play

pytestmark = pytest.mark.unit

_NO_ANSWER = (ssl.SSLError, ConnectionError)


@dataclass(frozen=True)
class Pair:
    """A certificate and its key."""

    certificate: x509.Certificate
    key: ec.EllipticCurvePrivateKey

    def write(self, directory: Path, name: str = "tls") -> None:
        directory.mkdir(exist_ok=True)
        kind = serialization.Encoding.PEM
        plain = serialization.NoEncryption()
        (directory / f"{name}.crt").write_bytes(self.certificate.public_bytes(kind))
        (directory / f"{name}.key").write_bytes(
            self.key.private_bytes(kind, serialization.PrivateFormat.PKCS8, plain)
        )


def made(name: str, by: Pair | None = None, days: float = 1.0) -> Pair:
    """by: the authority that signs it; None: it is one itself. days: until it expires."""
    key = ec.generate_private_key(ec.SECP256R1())
    called = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(timezone.utc)
    builder = (
        x509.CertificateBuilder()
        .subject_name(called)
        .issuer_name(called if by is None else by.certificate.subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(days=2))
        .not_valid_after(now + timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=by is None, path_length=None), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName("stanch")]), critical=False)
    )
    if by is not None:
        uses = [ExtendedKeyUsageOID.SERVER_AUTH, ExtendedKeyUsageOID.CLIENT_AUTH]
        builder = builder.add_extension(x509.ExtendedKeyUsage(uses), critical=False)
    return Pair(builder.sign(key if by is None else by.key, hashes.SHA256()), key)


class Keys:
    """Two authorities, a directory for the server, clients of either."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.ours, self.theirs = made("ours"), made("theirs")
        self.directory = path / "tls"

    def serve(self, mutual: bool = True) -> Path:
        made("stanch", self.ours).write(self.directory)
        authority = self.directory / "ca.crt"
        if mutual:
            authority.write_bytes(self.ours.certificate.public_bytes(serialization.Encoding.PEM))
        return self.directory

    def client(self, own: Pair | None) -> ssl.SSLContext:
        self.ours.write(self.path, "trust")
        context = ssl.create_default_context(cafile=self.path / "trust.crt")
        context.check_hostname = False
        if own is not None:
            own.write(self.path, "client")
            context.load_cert_chain(self.path / "client.crt", self.path / "client.key")
        return context


@pytest.fixture
def keys(tmp_path: Path) -> Keys:
    return Keys(tmp_path)


async def refused(w: World, tls: ssl.SSLContext) -> bool:
    """Whether the connection ends without an answer."""
    w.tls = tls
    try:
        return (await w.raw(b"POST /alerts/v4 HTTP/1.1\r\nContent-Length: 0\r\n\r\n")) == b""
    except _NO_ANSWER:
        return True


def test_a_certificate_of_our_authority_and_no_other(tmp_path: Path, keys: Keys) -> None:
    async def script(w: World) -> None:
        w.pod()
        for own in (None, made("c", keys.theirs), made("c", keys.ours, days=-1.0), keys.theirs):
            assert await refused(w, keys.client(own))
        w.tls = None
        assert await w.raw(b"POST /alerts/v4 HTTP/1.1\r\n\r\n") == b""
        w.tls = keys.client(made("alertmanager", keys.ours))
        assert (await w.send(payload(alert()))).code == 200
        await w.worked(created=1)

    play(script, tmp_path, token_file=None, alerts_tls_dir=keys.serve())


def test_with_a_token_both_are_needed(tmp_path: Path, keys: Keys) -> None:
    async def script(w: World) -> None:
        own = made("alertmanager", keys.ours)
        assert await refused(w, keys.client(None))
        w.tls = keys.client(own)
        assert (await w.send(payload(), token=OTHER)).code == 401
        assert (await w.send(payload())).code == 200

    play(script, tmp_path, alerts_tls_dir=keys.serve())


def test_tls_and_a_token(tmp_path: Path, keys: Keys) -> None:
    async def script(w: World) -> None:
        w.tls = keys.client(None)
        assert (await w.send(payload())).code == 200
        assert (await w.send(payload(), token=OTHER)).code == 401
        assert Certificates(keys.directory).context().minimum_version is ssl.TLSVersion.TLSv1_2

    play(script, tmp_path, alerts_tls_dir=keys.serve(mutual=False))


def test_certificates_are_renewed_while_we_run(tmp_path: Path, keys: Keys) -> None:
    async def script(w: World) -> None:
        own = made("alertmanager", keys.ours)
        w.tls = keys.client(own)
        assert (await w.send(payload())).code == 200
        # Another authority for both sides.
        keys.ours = made("ours-anew")
        keys.serve()
        assert await refused(w, keys.client(own))
        w.tls = keys.client(made("alertmanager", keys.ours))
        assert (await w.send(payload())).code == 200
        # What cannot be used changes nothing, and is said once.
        (keys.directory / "tls.key").write_text("half of a ke")
        for _ in range(3):
            assert (await w.send(payload())).code == 200
        (keys.directory / "ca.crt").unlink()
        assert await refused(w, keys.client(None))
        told = [line["message"] for line in w.lines("alerts-certificate")]
        assert len(told) == 2
        assert all("the one before stays" in line for line in told)

    play(script, tmp_path, token_file=None, alerts_tls_dir=keys.serve())


def test_a_client_that_never_shakes_hands(tmp_path: Path, keys: Keys) -> None:
    async def script(w: World) -> None:
        mute = [await asyncio.open_connection("127.0.0.1", w.port) for _ in range(6)]
        w.tls = keys.client(None)
        assert (await w.send(payload())).code == 200
        for _, writer in mute:
            writer.close()

    quick = replace(SMALL, connections=2, handshake_seconds=2.0)
    play(script, tmp_path, bounds=quick, alerts_tls_dir=keys.serve(mutual=False))


@pytest.mark.parametrize("missing", ["tls.crt", "tls.key"])
def test_it_does_not_start_without_its_files(tmp_path: Path, keys: Keys, missing: str) -> None:
    keys.serve()
    (keys.directory / missing).unlink()
    with pytest.raises(FileError, match=r"tls.crt and tls.key: cannot be read: No such file"):
        play(_never, tmp_path, token_file=None, alerts_tls_dir=keys.directory)


@pytest.mark.parametrize("which", ["tls.crt", "tls.key", "ca.crt"])
def test_it_does_not_start_with_nonsense(tmp_path: Path, keys: Keys, which: str) -> None:
    keys.serve()
    (keys.directory / which).write_text("nonsense\n")
    with pytest.raises(FileError, match="cannot be used"):
        play(_never, tmp_path, token_file=None, alerts_tls_dir=keys.directory)


def test_a_key_with_a_pass_phrase_is_not_asked_for_it(tmp_path: Path, keys: Keys) -> None:
    keys.serve()
    locked = made("x").key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.PKCS8,
        serialization.BestAvailableEncryption(b"secret"),
    )
    (keys.directory / "tls.key").write_bytes(locked)
    with pytest.raises(FileError, match="cannot be used"):
        play(_never, tmp_path, token_file=None, alerts_tls_dir=keys.directory)


def test_tls_alone_is_no_lock(tmp_path: Path, keys: Keys) -> None:
    with pytest.raises(FileError, match="nothing says who may send alerts"):
        play(_never, tmp_path, token_file=None, alerts_tls_dir=keys.serve(mutual=False))


async def _never(_: World) -> None:
    raise AssertionError("it started")
