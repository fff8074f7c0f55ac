"""The bed's certificates and keys, by openssl; nothing of them is secret or lasts longer than the bed."""

from __future__ import annotations

import subprocess
from collections.abc import Sequence
from pathlib import Path

from tests.bed.place import FIRST_SERVICE_IP, NODE_IP

_CURVE = ("-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes")
_DAYS = "30"


def write(directory: Path) -> None:
    """ca, api (a server's) and sa (the key pair that signs service accounts' tokens)."""
    directory.mkdir(mode=0o700)
    _openssl(
        "req", "-x509", *_CURVE, "-keyout", "ca.key", "-out", "ca.crt", *_for("stanch-bed"), at=directory
    )
    server(directory, "api", ("127.0.0.1", NODE_IP, FIRST_SERVICE_IP))
    _openssl("ecparam", "-name", "prime256v1", "-genkey", "-noout", "-out", "sa.key", at=directory)
    _openssl("ec", "-in", "sa.key", "-pubout", "-out", "sa.pub", at=directory)


def server(directory: Path, name: str, addresses: Sequence[str]) -> None:
    """NAME.crt and NAME.key for a server at these addresses, signed by the directory's own authority."""
    names = ",".join([*(f"IP:{address}" for address in addresses), "DNS:localhost"])
    directory.joinpath(f"{name}.ext").write_text(f"subjectAltName={names}\n")
    _openssl(
        "req", *_CURVE, "-keyout", f"{name}.key", "-out", f"{name}.csr", "-subj", f"/CN={name}", at=directory
    )
    signing = ["-CA", "ca.crt", "-CAkey", "ca.key", "-CAcreateserial", "-extfile", f"{name}.ext"]
    _openssl(
        "x509", "-req", "-in", f"{name}.csr", *signing, "-out", f"{name}.crt", "-days", _DAYS, at=directory
    )


def _for(name: str) -> tuple[str, ...]:
    return ("-days", _DAYS, "-subj", f"/CN={name}")


def _openssl(*arguments: str, at: Path) -> None:
    subprocess.run(["openssl", *arguments], cwd=at, check=True, capture_output=True)
