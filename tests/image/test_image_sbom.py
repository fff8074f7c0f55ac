"""The image's list of parts: whole, true to the image and the lock, and in the form that it claims."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from cyclonedx.schema import SchemaVersion
from cyclonedx.validation.json import JsonStrictValidator

from tests.bed import product
from tests.image import sbom
from tests.image.files import contents

pytestmark = pytest.mark.cluster
LOCK = Path(__file__).parents[2] / "requirements-operator.lock"


@pytest.fixture(scope="module")
def written(built: product.Built, tmp_path_factory: pytest.TempPathFactory) -> str:
    out = tmp_path_factory.mktemp("sbom") / "deep/stanch.cdx.json"
    sbom.write(built.image.archive, LOCK, out)
    return out.read_text()


@pytest.fixture(scope="module")
def parts(written: str) -> dict[str, Any]:
    """Components by purl without its qualifiers."""
    return {one["purl"].partition("?")[0]: one for one in json.loads(written)["components"]}


def test_it_is_cyclonedx(written: str) -> None:
    validator = JsonStrictValidator(SchemaVersion.V1_6)
    assert validator.validate_str(written) is None
    # The validator can tell.
    assert validator.validate_str(written.replace('"container"', '"no such type"')) is not None


def test_it_names_the_packages_of_both_kinds_with_versions(parts: dict[str, Any]) -> None:
    python = {purl: one for purl, one in parts.items() if purl.startswith("pkg:pypi/")}
    debian = {purl: one for purl, one in parts.items() if purl.startswith("pkg:deb/debian/")}
    names = {one["name"] for one in python.values()}
    assert {"stanch", "kopf", "kubernetes", "aiohttp", "cryptography"} <= names
    assert not names & {"pip", "setuptools", "pytest"}
    assert {"python3.11", "libc6", "openssl"} <= {one["name"] for one in debian.values()}
    assert all("arch=" in one["purl"] and "distro=debian-" in one["purl"] for one in debian.values())


def test_every_package_has_the_hashes_that_pip_held_it_to(parts: dict[str, Any]) -> None:
    locked = sbom.hashes(LOCK.read_text())
    ours = [one for purl, one in parts.items() if purl.startswith("pkg:pypi/") and one["name"] != "stanch"]
    assert len(ours) > 30
    for one in ours:
        (files,) = one["externalReferences"]
        assert {each["content"] for each in files["hashes"]} == set(
            locked[f"{one['name']}=={one['version']}"]
        )


def test_the_same_image_has_the_same_list(built: product.Built, written: str, tmp_path: Path) -> None:
    again = tmp_path / "again.json"
    sbom.write(built.image.archive, LOCK, again)
    assert again.read_text() == written


def test_an_image_of_another_lock_is_refused(built: product.Built) -> None:
    other = LOCK.read_text().replace("\nkopf==", "\nkopf-no-more==")
    with contents(built.image.archive) as image, pytest.raises(ValueError, match=r"kopf .* not in the lock"):
        sbom.bom(image, sbom.hashes(other))
