"""Write the tiny model that the test engines serve: a two-layer Llama of random weights (`--load-format
dummy`), nothing fetched.

The tokenizer is word-level: "w0" ... "w507", one token a word, so that a prompt of N words holds N tokens.
"""

from __future__ import annotations

import json
from pathlib import Path

WORDS = 508
SPECIAL = ("<pad>", "<bos>", "<eos>", "<unk>")


def write_model(directory: Path, *, max_tokens: int = 32768) -> Path:
    """Fill the directory with config.json, tokenizer.json and tokenizer_config.json; return it."""
    directory.mkdir(parents=True, exist_ok=True)
    for name, content in (
        ("config.json", _config(max_tokens)),
        ("tokenizer.json", _tokenizer()),
        ("tokenizer_config.json", _tokenizer_config(max_tokens)),
    ):
        directory.joinpath(name).write_text(json.dumps(content, indent=1))
    return directory


def words(count: int, seed: int = 0) -> str:
    """A prompt of `count` tokens; seeds below 508 differ in their first word, so no prefix is shared."""
    return " ".join(f"w{(seed * 131 + index * (seed % 7 + 1)) % WORDS}" for index in range(count))


def _config(max_tokens: int) -> dict[str, object]:
    return {
        "architectures": ["LlamaForCausalLM"],
        "model_type": "llama",
        "hidden_size": 128,
        "intermediate_size": 256,
        "num_hidden_layers": 2,
        "num_attention_heads": 2,
        "num_key_value_heads": 2,
        "head_dim": 64,
        "hidden_act": "silu",
        "rms_norm_eps": 1e-5,
        "rope_theta": 10000.0,
        "vocab_size": WORDS + len(SPECIAL),
        "max_position_embeddings": max_tokens,
        "bos_token_id": 1,
        "eos_token_id": 2,
        "tie_word_embeddings": False,
        "torch_dtype": "bfloat16",
    }


def _tokenizer() -> dict[str, object]:
    vocabulary = {
        word: number for number, word in enumerate([*SPECIAL, *(f"w{number}" for number in range(WORDS))])
    }
    special = [
        {
            "id": number,
            "content": word,
            "single_word": False,
            "lstrip": False,
            "rstrip": False,
            "normalized": False,
            "special": True,
        }
        for number, word in enumerate(SPECIAL)
    ]
    return {
        "version": "1.0",
        "truncation": None,
        "padding": None,
        "added_tokens": special,
        "normalizer": None,
        "pre_tokenizer": {"type": "WhitespaceSplit"},
        "post_processor": None,
        "decoder": None,
        "model": {"type": "WordLevel", "vocab": vocabulary, "unk_token": "<unk>"},
    }


def _tokenizer_config(max_tokens: int) -> dict[str, object]:
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": "<bos>",
        "eos_token": "<eos>",
        "pad_token": "<pad>",
        "unk_token": "<unk>",
        "model_max_length": max_tokens,
        "chat_template": "{% for m in messages %}{{ m['content'] }} {% endfor %}",
    }
