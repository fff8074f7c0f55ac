"""The webhook's own certificates, and the bundle of authorities of several processes."""

from __future__ import annotations

from pathlib import Path

import pytest
from cryptography import x509
from hypothesis import given
from hypothesis import strategies as st

from stanch.edge.certificates import LIFETIME_SECONDS, Issued, issue, merged
from tests.bed.pki import write as write_foreign

pytestmark = pytest.mark.unit

NAMES = ("stanch-webhook.stanch-system.svc",)
NOW = 1_900_000_000.0


def issued(now: float = NOW, identity: str = "stanch-0", seconds: float = LIFETIME_SECONDS) -> Issued:
    return issue(NAMES, identity, now, seconds)


def test_what_is_issued() -> None:
    one = issued()
    authority, server = (x509.load_pem_x509_certificate(pem) for pem in (one.authority, one.certificate))
    server.verify_directly_issued_by(authority)
    assert authority.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    assert not server.extensions.get_extension_for_class(x509.BasicConstraints).value.ca
    names = server.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert names.get_values_for_type(x509.DNSName) == list(NAMES)
    assert server.not_valid_after_utc.timestamp() == one.ends == NOW + 7 * 86400
    # A clock that is behind takes it, too.
    assert server.not_valid_before_utc.timestamp() == NOW - 3600


def test_it_is_due_at_two_thirds() -> None:
    one = issued(seconds=300)
    assert not one.due(NOW + 199.9)
    assert one.due(NOW + 200)


def test_an_identity_that_is_too_long_for_a_name() -> None:
    assert x509.load_pem_x509_certificate(issued(identity="x" * 300).authority)
    assert x509.load_pem_x509_certificate(issued(identity="").authority)


FOREIGN = b"""-----BEGIN CERTIFICATE-----
bm90IGEgY2VydGlmaWNhdGU=
-----END CERTIFICATE-----
"""


def count(bundle: bytes) -> int:
    return bundle.count(b"BEGIN CERTIFICATE")


def test_several_processes_stand_in_it_together() -> None:
    first, second = issued(), issued(identity="stanch-1")
    bundle = merged(merged(b"", [first.authority], NOW), [second.authority], NOW)
    assert {first.authority, second.authority} <= {
        block + b"-----END CERTIFICATE-----\n" for block in bundle.split(b"-----END CERTIFICATE-----\n")
    }
    assert merged(bundle, [first.authority], NOW).count(first.authority) == 1


def test_what_has_run_out_goes_and_what_is_foreign_stays() -> None:
    old, new = issued(seconds=100), issued(identity="stanch-1")
    bundle = merged(FOREIGN, [old.authority], NOW)
    assert merged(bundle, [new.authority], NOW + 99) == FOREIGN + old.authority + new.authority
    assert merged(bundle, [new.authority], NOW + 101) == FOREIGN + new.authority


def test_a_foreign_authority_of_a_real_shape_stays_also_when_it_has_run_out(tmp_path: Path) -> None:
    write_foreign(tmp_path / "pki")
    foreign = (tmp_path / "pki/ca.crt").read_bytes()
    far = NOW + 100 * 365 * 86400
    new = issued(now=far)
    assert merged(foreign, [new.authority], far) == foreign.strip() + b"\n" + new.authority


def test_a_process_that_starts_again_and_again_does_not_fill_it() -> None:
    bundle, last = b"", issued()
    for second in range(40):
        last = issued(now=NOW + second)
        bundle = merged(bundle, [last.authority], NOW + second)
    assert count(bundle) == 32
    assert bundle.endswith(last.authority)


ONE, OTHER = issued(), issued(identity="stanch-1")


@given(st.lists(st.sampled_from([ONE.authority, OTHER.authority, FOREIGN, b"junk\n", b"\r\n", b""])))
def test_written_once_it_is_not_written_again(parts: list[bytes]) -> None:
    bundle = merged(b"".join(parts), [ONE.authority], NOW)
    assert merged(bundle, [ONE.authority], NOW) == bundle
    assert bundle.count(ONE.authority) == 1
