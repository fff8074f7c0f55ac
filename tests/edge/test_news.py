"""Which events are news, and when a watch has fallen silent."""

from __future__ import annotations

from typing import Any

import pytest

from stanch.edge.news import SILENT_SECONDS, News

pytestmark = pytest.mark.unit


def an_object(version: int, generation: int = 1, **annotations: str) -> dict[str, Any]:
    meta = {"uid": "u", "namespace": "shop", "name": "w", "generation": generation}
    return {"metadata": {**meta, "resourceVersion": str(version), "annotations": annotations}}


def event(raw: dict[str, Any], kind: str | None = "MODIFIED") -> dict[str, Any]:
    return {"type": kind, "object": raw}


def test_what_people_do_is_news_and_a_status_is_none() -> None:
    news = News()
    assert news.take(event(an_object(1), None))
    assert not news.take(event(an_object(2)))
    assert news.take(event(an_object(3, generation=2)))
    assert news.take(event(an_object(4, generation=2, approve="true")))
    assert news.take(event(an_object(4), "DELETED"))
    assert news.take(event(an_object(5)))


def test_a_watch_is_silent_when_lists_move_on_and_nothing_is_heard() -> None:
    news = News()
    news.take(event(an_object(1)))
    assert news.behind([an_object(1)], 0.0) is None
    assert news.behind([an_object(2)], 10.0) is None
    assert news.behind([an_object(5)], 10.0 + SILENT_SECONDS) is None
    assert news.behind([an_object(9)], 11.0 + SILENT_SECONDS) == "shop/w"
    news.take(event(an_object(7)))  # late, but it is heard of
    assert news.behind([an_object(9)], 12.0 + SILENT_SECONDS) is None


def test_one_that_was_never_heard_of_counts_too() -> None:
    news = News()
    assert news.behind([an_object(1)], 0.0) is None
    assert news.behind([an_object(1)], SILENT_SECONDS + 1) == "shop/w"
    assert news.behind([], SILENT_SECONDS + 2) is None
