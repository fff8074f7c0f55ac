"""From a DisaggDeployment to the objects that it asks for, and the kit into pod templates. Pure: the same
input gives the same bytes, and nothing is read but the arguments."""

from __future__ import annotations

from stanch.edge.render.deployment import render
from stanch.edge.render.place import Object, Place, Problem, Rendered

__all__ = ["Object", "Place", "Problem", "Rendered", "render"]
