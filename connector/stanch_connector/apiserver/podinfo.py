"""The file in which a downward-API volume shows the pod's annotations.

One `key="value"` a line, sorted by key, no newline at the end, the value quoted by Go's %q, which is
strconv.Quote (k8s.io/kubernetes/pkg/fieldpath.FormatMap, read in 1.35). A newline inside a value is therefore
always `\\n`, and a line break always ends an entry. The kubelet replaces the whole file by renaming a
symlink, so that a reader that opens the path anew sees either the old or the new text, never half of one.
"""

from __future__ import annotations

import os
import stat
from dataclasses import dataclass

# All annotations of an object are at most 256 KiB (apimachinery's TotalAnnotationSizeLimitB); %q makes four
# bytes of one at worst.
MAX_FILE_BYTES = 1_100_000

_SIMPLE = {
    ord("a"): b"\a",
    ord("b"): b"\b",
    ord("f"): b"\f",
    ord("n"): b"\n",
    ord("r"): b"\r",
    ord("t"): b"\t",
    ord("v"): b"\v",
    ord("\\"): b"\\",
    ord('"'): b'"',
}
_HEX_DIGITS = {ord("x"): 2, ord("u"): 4, ord("U"): 8}
_HEX = frozenset(b"0123456789abcdefABCDEF")


class AnnotationsError(Exception):
    """The file says nothing that can be used; str() is the reason."""


@dataclass(frozen=True, slots=True)
class Annotations:
    """values: by key. bad_lines: lines that are no annotation, and were left out."""

    values: dict[str, str]
    bad_lines: int = 0


def parse(content: bytes) -> Annotations:
    """Every well-formed line of the file; the last one of a key wins. Never raises."""
    values: dict[str, str] = {}
    bad = 0
    for line in content.split(b"\n"):
        if not line:
            continue
        key, equals, quoted = line.partition(b"=")
        value = unquote(quoted)
        if not key or not equals or value is None:
            bad += 1
            continue
        values[key.decode("utf-8", "replace")] = value
    return Annotations(values, bad)


def unquote(quoted: bytes) -> str | None:
    """The text that Go's strconv.Quote wrote; None where it is no such text.

    Bytes that are not UTF-8 (Go writes them as \\x80 and up) become U+FFFD, as they would in JSON.
    """
    if len(quoted) < 2 or quoted[:1] != b'"' or quoted[-1:] != b'"':
        return None
    body = quoted[1:-1]
    if b"\\" not in body:
        return None if b'"' in body else body.decode("utf-8", "replace")
    out = bytearray()
    at = 0
    while at < len(body):
        byte = body[at]
        if byte == ord('"'):
            return None
        if byte != ord("\\"):
            out.append(byte)
            at += 1
            continue
        if at + 1 >= len(body):
            return None
        letter = body[at + 1]
        at += 2
        if letter in _SIMPLE:
            out += _SIMPLE[letter]
        elif letter in _HEX_DIGITS:
            digits = body[at : at + _HEX_DIGITS[letter]]
            if len(digits) != _HEX_DIGITS[letter] or not _HEX.issuperset(digits):
                return None
            code = int(digits, 16)
            at += len(digits)
            if letter == ord("x"):
                out.append(code)
            elif code > 0x10FFFF or 0xD800 <= code <= 0xDFFF:
                return None
            else:
                out += chr(code).encode()
        else:
            return None
    return out.decode("utf-8", "replace")


def read(path: str, limit: int = MAX_FILE_BYTES) -> bytes:
    """The file's bytes. Raises OSError, or AnnotationsError where it is larger than `limit` (by default what
    Kubernetes can write) or is not a regular file (a pipe would block the reader for ever)."""
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK)
    # Not by the file object: of a directory there is none to close it.
    try:
        if not stat.S_ISREG(os.fstat(descriptor).st_mode):
            raise AnnotationsError(f"{path} is not a regular file; it must name the file itself")
        with os.fdopen(descriptor, "rb", closefd=False) as file:
            content = file.read(limit + 1)
    finally:
        os.close(descriptor)
    if len(content) > limit:
        raise AnnotationsError(f"{path} is larger than {limit} bytes")
    return content
