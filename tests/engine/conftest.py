"""Fixtures of the engine tier."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.engine.bed import Bed
from tests.engine.pair import Pair


@pytest.fixture(scope="module")
def bed(request: pytest.FixtureRequest) -> Iterator[Bed]:
    """The engines of one test file, of the version that its VERSION names; gone at its end."""
    with Bed(request.module.VERSION) as engines:
        yield engines


@pytest.fixture(scope="module")
def pair(bed: Bed) -> Pair:
    """One prefill and one decode engine, shared by the scenarios of a file."""
    return Pair(bed)


@pytest.fixture
def clean_pair(pair: Pair) -> Pair:
    """The pair with a decode engine that holds nothing."""
    pair.clean()
    return pair
