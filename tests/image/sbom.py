"""What the image is made of, as CycloneDX 1.6: `python -m tests.image.sbom ARCHIVE LOCK OUT`.

ARCHIVE: the image as a docker archive; LOCK: requirements-operator.lock. Python's packages are those whose
metadata lies in the image, Debian's those of its dpkg. The same image gives the same bytes.
"""

from __future__ import annotations

import re
import sys
import uuid
from collections.abc import Iterator, Sequence
from datetime import datetime, timezone
from email.parser import Parser
from hashlib import sha256
from pathlib import Path

from cyclonedx.contrib.license.factories import LicenseFactory
from cyclonedx.model import ExternalReference, ExternalReferenceType, HashAlgorithm, HashType, XsUri
from cyclonedx.model.bom import Bom
from cyclonedx.model.component import Component, ComponentType
from cyclonedx.output.json import JsonV1Dot6
from packageurl import PackageURL

from tests.image.files import Contents, contents

# The kit's copy in /opt/stanch is the same package once more; what a base has for its own Python is dpkg's.
_OURS = re.compile(r"opt/venv/lib/python3\.\d+/site-packages/[^/]+\.dist-info/METADATA")


def hashes(lock: str) -> dict[str, list[str]]:
    """The SHA-256 hashes that pip takes, by `name==version`, from a lock."""
    found: dict[str, list[str]] = {}
    package = ""
    for line in lock.splitlines():
        if start := re.match(r"([a-z0-9-]+==[^ ;\\]+)", line):
            package = start[1]
            found[package] = []
        elif hashed := re.search(r"--hash=sha256:([0-9a-f]{64})", line):
            found[package].append(hashed[1])
    return found


def bom(image: Contents, locked: dict[str, list[str]]) -> Bom:
    """locked: see `hashes`. Raises ValueError for a package of ours that no lock names."""
    labels = image.config["config"].get("Labels") or {}
    version = labels.get("org.opencontainers.image.version")
    made = Bom(components=[*_python(image, locked), *_debian(image)])
    whole = Component(name="stanch", version=version, type=ComponentType.CONTAINER, bom_ref="image")
    made.metadata.component = whole
    made.register_dependency(whole, made.components)
    made.metadata.timestamp = _created(image)
    named = "".join(sorted(str(one.purl) for one in made.components)) + str(
        image.config["rootfs"]["diff_ids"]
    )
    made.serial_number = uuid.uuid5(uuid.NAMESPACE_OID, sha256(named.encode()).hexdigest())
    return made


def _python(image: Contents, locked: dict[str, list[str]]) -> Iterator[Component]:
    licenses = LicenseFactory()
    for path, file in sorted(image.files.items()):
        if not _OURS.fullmatch(path):
            continue
        told = Parser().parsestr(file.read().decode())
        name = re.sub(r"[-_.]+", "-", told["Name"]).lower()
        purl = PackageURL("pypi", None, name, told["Version"])
        takes = locked.get(f"{name}=={told['Version']}", [])
        if not takes and name != "stanch":
            raise ValueError(
                f"{name} {told['Version']} is in the image, but not in the lock: another lock's image?"
            )
        kind = told["License-Expression"] or ""
        yield Component(
            name=name,
            version=told["Version"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
            description=told["Summary"],
            licenses=[licenses.make_from_string(kind)] if kind else [],
            external_references=[_files(purl, takes)] if takes else [],
        )


def _files(purl: PackageURL, takes: Sequence[str]) -> ExternalReference:
    """The files of a release, one of which was installed: pip refuses one of another hash."""
    return ExternalReference(
        type=ExternalReferenceType.DISTRIBUTION,
        url=XsUri(str(purl)),
        hashes=[HashType(alg=HashAlgorithm.SHA_256, content=one) for one in takes],
    )


def _debian(image: Contents) -> Iterator[Component]:
    """Of dpkg's status; where it has none (another base), nothing."""
    status = image.files.get("var/lib/dpkg/status")
    system = _os_release(image)
    for block in ("" if status is None else status.read().decode()).split("\n\n"):
        told = Parser().parsestr(block)
        if not told["Package"] or not (told["Status"] or "").endswith(" installed"):
            continue
        purl = PackageURL(
            "deb", "debian", told["Package"], told["Version"], {"arch": told["Architecture"], **system}
        )
        yield Component(
            name=told["Package"],
            version=told["Version"],
            type=ComponentType.LIBRARY,
            purl=purl,
            bom_ref=str(purl),
        )


def _os_release(image: Contents) -> dict[str, str]:
    for path in ("etc/os-release", "usr/lib/os-release"):
        file = image.files.get(path)
        if file is not None and file.info.isfile():
            told = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', file.read().decode(), re.MULTILINE))
            return {"distro": f"{told.get('ID', 'linux')}-{told.get('VERSION_ID', '0')}"}
    return {}


def _created(image: Contents) -> datetime:
    """When the image was made, by its own word."""
    told = re.match(r"(\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d)", image.config.get("created") or "")
    return datetime.fromisoformat(told[1] if told else "1970-01-01T00:00:00").replace(tzinfo=timezone.utc)


def write(archive: Path, lock: Path, out: Path) -> int:
    """Write it; the number of components."""
    with contents(archive) as image:
        made = bom(image, hashes(lock.read_text()))
    out.parent.mkdir(parents=True, exist_ok=True)
    out.write_text(JsonV1Dot6(made).output_as_string(indent=2) + "\n")
    return len(made.components)


if __name__ == "__main__":
    file = Path(sys.argv[3])
    print(f"{file}: {write(Path(sys.argv[1]), Path(sys.argv[2]), file)} components")
