"""YAML as Kubernetes reads it, nearly: PyYAML's safe loader and dumper without the types that only YAML
1.1 has."""

from __future__ import annotations

import re
from typing import Any, Final

import yaml

_LEFT_OUT: Final = ("tag:yaml.org,2002:timestamp", "tag:yaml.org,2002:value")
_NUMBERS: Final = ("tag:yaml.org,2002:int", "tag:yaml.org,2002:float")
# Texts that another reader takes for a number or a truth value: they are quoted.
_AMBIGUOUS = re.compile(r"[-+.\d][-+.\d_:eExXoObBa-fA-F]*|[yYnN]")


class Loader(yaml.SafeLoader):
    """A date stays a text, and so does 12:30, which would be a number of base 60."""


Loader.yaml_implicit_resolvers = {
    first: [(tag, pattern) for tag, pattern in resolvers if tag not in _LEFT_OUT]
    for first, resolvers in yaml.SafeLoader.yaml_implicit_resolvers.items()
}
Loader.add_implicit_resolver(
    "tag:yaml.org,2002:str",
    re.compile(r"[-+]?[0-9][0-9_]*(:[0-5]?[0-9])+(\.[0-9_]*)?$"),
    list("-+0123456789"),
)


class _Dumper(yaml.SafeDumper):
    def ignore_aliases(self, data: Any) -> bool:
        return True


def _text(dumper: _Dumper, value: str) -> yaml.ScalarNode:
    style = "|" if "\n" in value else "'" if _AMBIGUOUS.fullmatch(value) else None
    return dumper.represent_scalar("tag:yaml.org,2002:str", value, style=style)


_Dumper.add_representer(str, _text)


def block(value: Any) -> str:
    """In block style, without line breaks of its own making."""
    text: str = yaml.dump(
        value, Dumper=_Dumper, sort_keys=False, default_flow_style=False, width=1_000_000, allow_unicode=True
    )
    return text
