"""Links of the documents: each leads to a file of the checkout, and to a place that is in it."""

from __future__ import annotations

import re
from collections import Counter
from pathlib import Path

import pytest

pytestmark = pytest.mark.unit
row = pytest.param

ROOT = Path(__file__).parents[2]
# The checkout's own places: what an environment or a build has put beside them is not ours.
PLACES = (
    "*.md",
    *(f"{top}/**/*.md" for top in ("docs", "charts", "connector", "operator", "tests", "bench")),
)
DOCUMENTS = sorted({path for place in PLACES for path in ROOT.glob(place)})
_FENCED = re.compile(r"^ *(`{3,}|~{3,}).*?^ *\1", re.MULTILINE | re.DOTALL)
_LINK = re.compile(r"\]\((?!<)([^)\s]+)(?: \"[^\"]*\")?\)")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]*:", re.IGNORECASE)


def prose(text: str) -> str:
    return _FENCED.sub("", text)


def anchors(text: str) -> set[str]:
    """Of the headings, as GitHub makes them, and those that are written out."""
    found, seen = set(re.findall(r'<a id="([^"]+)"', text)), Counter[str]()
    for heading in re.findall(r"^#{1,6} +(.*?)[ #]*$", prose(text), re.MULTILINE):
        words = re.sub(r"\[([^]]*)\]\([^)]*\)", r"\1", heading)
        slug = re.sub(r"[^\w -]", "", words.lower()).replace(" ", "-")
        found.add(f"{slug}-{seen[slug]}" if seen[slug] else slug)
        seen[slug] += 1
    return found


def links(text: str) -> list[str]:
    """Those that stay in the checkout."""
    found = _LINK.findall(re.sub(r"`[^`\n]*`", "", prose(text)))
    return [one for one in found if not _SCHEME.match(one)]


def wrong(document: Path) -> list[str]:
    found = []
    for link in links(document.read_text(encoding="utf-8")):
        path, _, anchor = link.partition("#")
        target = document.parent / path if path else document
        if not target.exists():
            found.append(f"{link}: there is no such file")
        elif anchor and target.suffix == ".md" and anchor not in anchors(target.read_text(encoding="utf-8")):
            found.append(f"{link}: there is no such place in it")
    return found


@pytest.mark.parametrize("document", [row(path, id=str(path.relative_to(ROOT))) for path in DOCUMENTS])
def test_every_link_leads_somewhere(document: Path) -> None:
    assert wrong(document) == []


def test_there_are_links() -> None:
    assert ROOT / "README.md" in DOCUMENTS
    assert "docs/install.md" in links((ROOT / "README.md").read_text(encoding="utf-8"))


def test_what_a_wrong_link_is(tmp_path: Path) -> None:
    (tmp_path / "b.md").write_text(
        '# What `it` is, and\n## Twice\n## Twice\n<a id="own"></a>\n```\n# no heading\n```\n'
    )
    text = "[a](b.md) [a](b.md#what-it-is-and) [a](b.md#twice-1) [a](b.md#own)\n"
    text += "[a](b.md#no-heading) [a](b.md#twice-2)\n"
    text += "[a](c.md) [a](#here) [a](https://example.com/x.md) `[a](d.md)`\n```\n[a](e.md)\n```\n"
    document = tmp_path / "a.md"
    document.write_text(text + "# Not here\n")
    assert wrong(document) == [
        "b.md#no-heading: there is no such place in it",
        "b.md#twice-2: there is no such place in it",
        "c.md: there is no such file",
        "#here: there is no such place in it",
    ]
