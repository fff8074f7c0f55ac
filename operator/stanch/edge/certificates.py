"""The webhook's own certificates: made in memory, never in a Secret; and the bundle in which its authority
stands.

Each process is its own authority. Those of all replicas stand in one caBundle, so that the API server trusts
whichever it reaches; each has a week, so that those of processes that have gone go as well.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from datetime import datetime, timedelta, timezone
from typing import Final

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

LIFETIME_SECONDS: Final = 7 * 86400.0
# The API server's clock may be behind ours.
_BACK = timedelta(hours=1)
# By this we know those of ours in a bundle.
_ORGANIZATION: Final = "stanch.dev webhook"
# More of ours come only from a process that starts again and again.
_MOST: Final = 32
_PEM = re.compile(rb"-----BEGIN CERTIFICATE-----.*?-----END CERTIFICATE-----\n?", re.DOTALL)


@dataclass(frozen=True, slots=True)
class Issued:
    """An authority, and a certificate with its key for the server, in PEM. made, ends: Unix seconds."""

    authority: bytes
    certificate: bytes
    key: bytes
    made: float
    ends: float

    def due(self, now: float) -> bool:
        """Whether the next one is to be made: at two thirds, so that a third is left for trouble."""
        return now >= self.made + (self.ends - self.made) * 2 / 3


def issue(names: Sequence[str], identity: str, now: float, seconds: float = LIFETIME_SECONDS) -> Issued:
    """names: of the server, as DNS has them. identity: of the process, for people who look at it."""
    ends = datetime.fromtimestamp(now + seconds, timezone.utc)
    began = datetime.fromtimestamp(now, timezone.utc) - _BACK
    authority_key, key = (ec.generate_private_key(ec.SECP256R1()) for _ in range(2))
    who = _name(identity)
    authority = (
        _builder(who, who, authority_key.public_key(), began, ends)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .sign(authority_key, hashes.SHA256())
    )
    alternatives = x509.SubjectAlternativeName([x509.DNSName(name) for name in names])
    issuer = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority_key.public_key())
    certificate = (
        _builder(who, x509.Name([]), key.public_key(), began, ends)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage([ExtendedKeyUsageOID.SERVER_AUTH]), critical=False)
        # Critical because the subject is empty (RFC 5280, 4.2.1.6).
        .add_extension(alternatives, critical=True)
        .add_extension(issuer, critical=False)
        .sign(authority_key, hashes.SHA256())
    )
    pem = serialization.Encoding.PEM
    plain = serialization.NoEncryption()
    return Issued(
        authority.public_bytes(pem),
        certificate.public_bytes(pem),
        key.private_bytes(pem, serialization.PrivateFormat.PKCS8, plain),
        now,
        now + seconds,
    )


def _name(identity: str) -> x509.Name:
    common = x509.NameAttribute(NameOID.COMMON_NAME, identity[:64] or "-")
    return x509.Name([x509.NameAttribute(NameOID.ORGANIZATION_NAME, _ORGANIZATION), common])


def _builder(
    issuer: x509.Name, subject: x509.Name, key: ec.EllipticCurvePublicKey, began: datetime, ends: datetime
) -> x509.CertificateBuilder:
    builder = x509.CertificateBuilder(issuer, subject, key, x509.random_serial_number(), began, ends)
    return builder.add_extension(x509.SubjectKeyIdentifier.from_public_key(key), critical=False)


def _usage(signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=not signs,
        key_cert_sign=signs,
        crl_sign=signs,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        encipher_only=False,
        decipher_only=False,
    )


def merged(bundle: bytes, ours: Iterable[bytes], now: float) -> bytes:
    """The bundle with these authorities of ours in it, in PEM. What is not of a webhook of Stanch stays,
    as it is; of those that are, what has run out goes, and of too many the oldest."""
    mine = list(dict.fromkeys(one.strip() + b"\n" for one in ours))
    foreign, others = [], []
    for block in (one.strip() + b"\n" for one in _PEM.findall(bundle)):
        stanch = _of_stanch(block)
        if stanch is None:
            foreign.append(block)
        elif block not in mine and stanch.not_valid_after_utc.timestamp() > now:
            others.append((stanch.not_valid_after_utc, block))
    others.sort()
    kept = [block for _, block in others[max(0, len(others) + len(mine) - _MOST) :]]
    return b"".join([*foreign, *kept, *mine])


def _of_stanch(block: bytes) -> x509.Certificate | None:
    """None for one of somebody else's, and for what is none."""
    try:
        found = x509.load_pem_x509_certificate(block)
        names = found.subject.get_attributes_for_oid(NameOID.ORGANIZATION_NAME)
    except ValueError:
        return None
    return found if any(name.value == _ORGANIZATION for name in names) else None
