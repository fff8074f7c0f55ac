"""What a target may be, and what is refused before anything is sent."""

from __future__ import annotations

import asyncio
from collections.abc import Callable

import pytest

from stanch.edge.scrape import Scraper
from stanch.edge.target import Target

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("url", "page_url"),
    [
        pytest.param("http://h:8000", "http://h:8000/metrics", id="base"),
        pytest.param("http://h:8000/", "http://h:8000/metrics", id="base with slash"),
        pytest.param("https://h/metrics", "https://h/metrics", id="page"),
        pytest.param("http://[::1]:8000", "http://[::1]:8000/metrics", id="IPv6"),
        pytest.param("http://h/x?a=b", "http://h/x?a=b", id="query"),
    ],
)
def test_target_urls(url: str, page_url: str) -> None:
    target = Target("d", url)
    assert str(target.page) == page_url
    assert (target.filtered_page is None) == ("?" in url)


@pytest.mark.parametrize(
    ("url", "sentence"),
    [
        pytest.param("h:8000", "must start with http:// or https://", id="no scheme"),
        pytest.param("ftp://h", "must start with http:// or https://", id="scheme"),
        pytest.param("http://", "names no host", id="no host"),
        pytest.param("http://h:99999", "is not a URL", id="port"),
        pytest.param("http://h:x", "is not a URL", id="port is a word"),
        pytest.param("http://h:0", "has port 0", id="port 0"),
        pytest.param("http://h /metrics", "has a space or a control character", id="space"),
        pytest.param("http://h/\n", "has a space or a control character", id="line feed"),
        pytest.param("http://h/#top", "has a fragment", id="fragment"),
        pytest.param("http://[::1", "is not a URL", id="bracket"),
        pytest.param("", "must start with http:// or https://", id="empty"),
    ],
)
def test_a_url_that_cannot_be_one_says_why(url: str, sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        Target("d", url)


@pytest.mark.parametrize(
    ("make", "sentence"),
    [
        pytest.param(lambda: Target("", "http://h"), "needs a name", id="no name"),
        pytest.param(
            lambda: Scraper([Target("a", "http://h"), Target("a", "http://i")], 1), "same name: a", id="twice"
        ),
        pytest.param(lambda: Scraper([], 0), "must be above 0", id="interval"),
        pytest.param(lambda: Scraper([], 1, -1), "must be above 0", id="deadline"),
        pytest.param(lambda: Scraper([], float("nan")), "must be above 0", id="NaN"),
    ],
)
def test_what_is_refused_before_anything_is_sent(make: Callable[[], object], sentence: str) -> None:
    with pytest.raises(ValueError, match=sentence):
        make()


def test_a_scraper_that_was_not_entered_says_so() -> None:
    scraper = Scraper([Target("a", "http://h")], 1)

    with pytest.raises(RuntimeError, match="must be entered"):
        asyncio.run(scraper.once(scraper.targets[0]))
