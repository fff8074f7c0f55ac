"""How the request ids begin that injector.py acts on (apart from it, since that one imports vLLM)."""

PARK = "park-"
MUTE = "mute-"
GRAMMAR = "grammar-"
SAME = "same-"
LATE = "late-"
HALF = "half-"
