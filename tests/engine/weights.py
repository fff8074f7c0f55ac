"""Weights for the tiny model (model.py) with which every block of the KV cache matters to the answer.

vLLM's `--load-format dummy` gives weights so small that the attention adds nothing to the last token's own
embedding: such a model answers the same over a wrong cache. These are large, random and always the same.
Start an engine with `extra_args=NEEDS`.
"""

from __future__ import annotations

import json
import random
import struct
from array import array
from pathlib import Path

NEEDS = ("--load-format", "auto")


def write_weights(model: Path) -> None:
    """Write model.safetensors beside the directory's config.json."""
    config = json.loads((model / "config.json").read_text())
    hidden, inner, vocabulary = config["hidden_size"], config["intermediate_size"], config["vocab_size"]
    heads = config["num_attention_heads"] * config["head_dim"]
    shapes: dict[str, tuple[tuple[int, ...], float]] = {
        "model.embed_tokens.weight": ((vocabulary, hidden), 1.0),
        "model.norm.weight": ((hidden,), 0.0),
        "lm_head.weight": ((vocabulary, hidden), 0.1),
    }
    for layer in range(config["num_hidden_layers"]):
        at = f"model.layers.{layer}."
        shapes |= {f"{at}{name}_layernorm.weight": ((hidden,), 0.0) for name in ("input", "post_attention")}
        # Attention that looks at few places, so that one place more or less is seen.
        shapes |= {f"{at}self_attn.{name}_proj.weight": ((heads, hidden), 0.15) for name in "qk"}
        shapes |= {f"{at}self_attn.v_proj.weight": ((heads, hidden), 0.2)}
        shapes |= {f"{at}self_attn.o_proj.weight": ((hidden, heads), 0.2)}
        shapes |= {f"{at}mlp.{name}_proj.weight": ((inner, hidden), 0.1) for name in ("gate", "up")}
        shapes |= {f"{at}mlp.down_proj.weight": ((hidden, inner), 0.1)}
    dice = random.Random(7)
    header: dict[str, object] = {"__metadata__": {"format": "pt"}}
    data = bytearray()
    for name, (shape, deviation) in shapes.items():
        count = shape[0] * (shape[1] if len(shape) == 2 else 1)
        # The norms are ones.
        values = array("f", (dice.gauss(0, deviation) if deviation else 1.0 for _ in range(count)))
        start = len(data)
        data += _bfloat16(values)
        header[name] = {"dtype": "BF16", "shape": shape, "data_offsets": [start, len(data)]}
    head = json.dumps(header).encode()
    head += b" " * (-len(head) % 8)
    (model / "model.safetensors").write_bytes(struct.pack("<Q", len(head)) + head + data)


def _bfloat16(values: array[float]) -> bytes:
    """The upper halves of little-endian float32."""
    raw = values.tobytes()
    return bytes(half for at in range(2, len(raw), 4) for half in raw[at : at + 2])
