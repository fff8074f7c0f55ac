"""The beginnings of request ids that injector.py acts on; apart from it, since that one needs vLLM to be imported."""

PARK = "park-"
MUTE = "mute-"
GRAMMAR = "grammar-"
