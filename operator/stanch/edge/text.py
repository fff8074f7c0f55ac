"""What others say, made fit for a terminal: no control character of a server ever reaches one."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text with a question mark for every character that is not printable."""
    return text if text.isprintable() else "".join(c if c.isprintable() else "?" for c in text)


def one_line(text: str, most: int) -> str:
    """The start of the text on one printable line, at most so many characters."""
    return printable(" ".join(text.split()))[:most]
