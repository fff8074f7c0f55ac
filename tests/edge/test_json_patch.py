"""What differs, as operations that make the one of the other."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stanch.edge.json_patch import difference
from tests.edge.json_patches import applied

pytestmark = pytest.mark.unit

VALUES: Any = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.floats(allow_nan=False) | st.sampled_from(["", "a"]),
    lambda one: st.lists(one, max_size=4) | st.dictionaries(st.sampled_from(["a", "~", "/", "~1", ""]), one),
    max_leaves=20,
)


@given(VALUES, VALUES)
def test_the_operations_make_the_new_one(old: Any, new: Any) -> None:
    patch = difference(old, new)
    made = applied(old, patch)
    assert json.dumps(made, sort_keys=True) == json.dumps(new, sort_keys=True)


@given(VALUES)
def test_nothing_where_nothing_differs(value: Any) -> None:
    assert difference(value, json.loads(json.dumps(value))) == []


@pytest.mark.parametrize(
    ("old", "new", "patch"),
    [
        ({"a": 1}, {"a": True}, [{"op": "replace", "path": "/a", "value": True}]),
        ([1, 2], [0, 1, 2], [{"op": "add", "path": "/0", "value": 0}]),
        ([1, 2], [1, 2, 3, 4], [{"op": "add", "path": f"/{n - 1}", "value": n} for n in (3, 4)]),
        ([1, 2, 3, 4], [1, 4], [{"op": "remove", "path": "/2"}, {"op": "remove", "path": "/1"}]),
        ([{"x": 1}, {"x": 2}], [{"x": 1}, {"x": 3}], [{"op": "replace", "path": "/1/x", "value": 3}]),
        ({"a/b~c": 1}, {}, [{"op": "remove", "path": "/a~1b~0c"}]),
        ({}, {"a": {"b": []}}, [{"op": "add", "path": "/a", "value": {"b": []}}]),
    ],
)
def test_small(old: Any, new: Any, patch: Any) -> None:
    assert difference(old, new) == patch
