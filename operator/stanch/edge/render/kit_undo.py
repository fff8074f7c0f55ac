"""What the annotation stanch.dev/kit keeps, so that the kit can be taken out again. Pure."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Any

from stanch.api.names import ANNOTATION_KIT
from stanch.edge.units_raw import annotation

Object = dict[str, Any]


@dataclass(slots=True)
class Undo:
    """container: the engine's. probe: path of its readiness before, "" where it was left alone.
    middleware: whether the flag was put in. environment:
    values before of variables that were there, None for one without a value. transfers: texts of
    --kv-transfer-config before, where the connector was changed, and patch its mode. empty: lists and tables
    that were there without anything in them ("null" or "empty")."""

    container: str
    image: str
    probe: str = ""
    middleware: bool = False
    environment: dict[str, str | None] = field(default_factory=dict)
    transfers: list[str] = field(default_factory=list)
    patch: str = ""
    empty: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, template: Mapping[str, Any]) -> Undo | str | None:
        """None where there is no kit; a sentence where the annotation is not what `mark` writes."""
        raw = annotation(template, ANNOTATION_KIT)
        if raw is None:
            return None
        try:
            undo = cls(**json.loads(raw))
        except (ValueError, TypeError, RecursionError):
            undo = None
        if undo is None or not undo._is_whole():
            return f"its annotation {ANNOTATION_KIT} is not as Stanch wrote it: take the kit out by hand"
        return undo

    def _is_whole(self) -> bool:
        names = (self.container, self.image, self.probe, self.patch)
        shapes = ((self.environment, dict), (self.transfers, list), (self.empty, dict))
        if not all(isinstance(one, kind) for one, kind in shapes):
            return False
        texts = (*names, *self.transfers, *self.empty.values(), *(v or "" for v in self.environment.values()))
        return all(isinstance(one, str) for one in texts)

    def mark(self, template: Object) -> None:
        metadata = self.table_at(template, "metadata", "metadata")
        annotations = self.table_at(metadata, "annotations", "annotations")
        kept = {key: value for key, value in asdict(self).items() if value}
        annotations[ANNOTATION_KIT] = json.dumps(kept, ensure_ascii=False)

    def unmark(self, template: Object) -> None:
        del template["metadata"]["annotations"][ANNOTATION_KIT]
        self.leave(template["metadata"], "annotations", "annotations")
        self.leave(template, "metadata", "metadata")

    def list_at(self, holder: Object, key: str, name: str) -> list[Any]:
        """The list there, made where there is none. name: under which it is remembered that it was empty."""
        found: list[Any] = self._there(holder, key, name, [])
        return found

    def table_at(self, holder: Object, key: str, name: str) -> Object:
        found: Object = self._there(holder, key, name, {})
        return found

    def _there(self, holder: Object, key: str, name: str, new: Any) -> Any:
        if holder.get(key) is None:
            if key in holder:
                self.empty[name] = "null"
            holder[key] = new
        elif not holder[key]:
            self.empty[name] = "empty"
        return holder[key]

    def leave(self, holder: Object, key: str, name: str) -> None:
        """A list or table from which something was taken: as it was, where nothing is left in it."""
        if holder[key]:
            return
        before = self.empty.get(name)
        if before is None:
            del holder[key]
        elif before == "null":
            holder[key] = None
