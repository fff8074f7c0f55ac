"""From the scheduler's request id to the id that the client knows: the `id` of its response.

vLLM 0.29.0 and 0.32.0 make the scheduler's id so (v1/engine/input_processor.py,
v1/engine/parallel_sampling.py, entrypoints/openai/completion/serving.py,
entrypoints/openai/chat_completion/serving.py):

    response id                    X-Request-Id: X gives cmpl-X, chatcmpl-X
    one prompt of a completion     cmpl-X-<prompt index>
    every request                  ...-<8 hex digits>, from 0.14 on, see ids_are_randomized
    one of n samples               <sample index>_...

A chat batch names its parts chatcmpl-X_<index>, which an X may end in as well: that one is left as it is.
"""

from __future__ import annotations

import re
from typing import Final

_RANDOM: Final = re.compile(r"-[0-9a-f]{8}\Z")
_SAMPLE: Final = re.compile(r"\A[0-9]{1,6}_(?=(?:cmpl|chatcmpl)-)")
_PROMPT: Final = re.compile(r"-[0-9]{1,6}\Z")


def client_id(scheduler_id: str, *, randomized: bool) -> str:
    """The client's id. randomized: whether vLLM put a random suffix on every id."""
    known = _SAMPLE.sub("", scheduler_id, count=1)
    if randomized:
        known = _RANDOM.sub("", known, count=1)
    if known.startswith("cmpl-"):
        shorter = _PROMPT.sub("", known, count=1)
        # "cmpl-7": the number is all that there is, so it is the client's.
        known = shorter if shorter != "cmpl" else known
    return known
