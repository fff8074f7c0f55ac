"""Fixtures: the image as an archive; no cluster is needed."""

from __future__ import annotations

import pytest

from tests.bed import product


@pytest.fixture(scope="session")
def built() -> product.Built:
    """The image and what it cost; built unless it is there."""
    if (lack := product.missing()) is not None:
        pytest.skip(lack)
    return product.operator_built()
