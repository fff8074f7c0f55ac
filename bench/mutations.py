"""What can happen to a page on its way, and worse: the mutations of bench.reader."""

from __future__ import annotations

import random

NUMBERS = (
    b"NaN",
    b"-1",
    b"+Inf",
    b"1e999",
    b"0x10",
    b"1_0",
    b"1e-7",
    b"",
    b".5",
    b"5.",
    b"00",
    b"1.0 99",
    b"nan",
)
PIECES = (
    *(
        b"\n",
        b"\r\n",
        b"\\",
        b'"',
        b"{",
        b"}",
        b",",
        b" ",
        b"\t",
        b"#",
        b"\0",
        b"\xff",
        b"\xc3\xa9",
        b"\xe2\x80\xa8",
    ),
    *(
        b"_total",
        b"vllm:",
        b'engine="1"',
        b'model_name="m"',
        b'a="b",',
        b"\\n",
        b"\\\\",
        b'\\"',
        b"\x0b",
        b"\x85",
    ),
    *(b"vllm:num_requests_running 1\n", b"process_start_time_seconds 5\n", b"# EOF\n", b"ray_", b'{"x"} 1\n'),
)


def mutated(page: bytes, others: list[bytes], rng: random.Random) -> bytes:
    """The page with one to four things done to it."""
    for _ in range(rng.choice((1, 1, 1, 2, 3, 4))):
        page = _MUTATIONS[rng.randrange(len(_MUTATIONS))](page, others, rng)
    return page


def _flip(page: bytes, _: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(page) + 1)
    return page[:at] + bytes([rng.randrange(256)]) + page[at + 1 :]


def _insert(page: bytes, _: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(page) + 1)
    return page[:at] + rng.choice(PIECES) + page[at:]


def _remove(page: bytes, _: list[bytes], rng: random.Random) -> bytes:
    at = rng.randrange(len(page) + 1)
    return page[:at] + page[at + rng.choice((1, 1, 2, 7, 40, 400)) :]


def _cut(page: bytes, _: list[bytes], rng: random.Random) -> bytes:
    return page[: rng.randrange(len(page) + 1)]


def _splice(page: bytes, others: list[bytes], rng: random.Random) -> bytes:
    other = rng.choice(others)
    return page[: rng.randrange(len(page) + 1)] + other[rng.randrange(len(other)) :]


def _lines(page: bytes, _: list[bytes], rng: random.Random) -> bytes:
    """One line repeated, dropped, moved, renumbered, relabelled or with a time stamp."""
    lines = page.splitlines(keepends=True) or [b""]
    at = rng.randrange(len(lines))
    line = lines[at]
    match rng.randrange(7):
        case 0:
            lines.insert(rng.randrange(len(lines) + 1), line)
        case 1:
            del lines[at]
        case 2:
            lines.insert(rng.randrange(len(lines)), lines.pop(at))
        case 3 | 4:
            lines[at] = line.rpartition(b" ")[0] + b" " + rng.choice(NUMBERS) + b"\n"
        case 5:
            lines[at] = line.replace(
                b'engine="0"', rng.choice((b'engine="1"', b'pid="7",engine="0"', b'x=""'))
            )
        case _:
            lines[at] = line[:-1] + rng.choice((b" 1795967622000\n", b" -1\n", b"\r\n", b" \n", b" # {} 1\n"))
    return b"".join(lines)


def _ends(page: bytes, _: list[bytes], __: random.Random) -> bytes:
    return page.replace(b"\n", b"\r\n")


_MUTATIONS = (_flip, _flip, _insert, _insert, _remove, _cut, _splice, _lines, _lines, _lines, _lines, _ends)
