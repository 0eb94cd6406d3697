"""A compiled model that takes the sizes of another one in place of being compiled anew.

Most of the time that MuJoCo takes to compile a robot goes into the shapes of its parts, read from
files. Where two descriptions differ by the sizes of a few plain geoms alone, both are compiled
without those shapes, and what differs between the two is carried over: masses, inertias, bounds.
What follows from the whole model is computed by ``mj_setConst``, as it is at the end of compiling.
The outcome has the bits of a model that is compiled. Where it might not have them, it is compiled.
"""

from __future__ import annotations

import xml.etree.ElementTree as ElementTree
from typing import Any

import numpy as np
from numpy.typing import NDArray

__all__ = ["ResizedModel"]

_SIZES = ("size", "pos")
_LARGE = 100_000  # entries; only vertices, pictures and bounds have more, which no episode changes
_BOUNDS = "bvh_aabb"


class ResizedModel:
    """A model, and the description that it was compiled from.

    Args:
        description: MJCF.
        model: a ``mujoco.MjModel`` compiled from it that nothing has been written into since.
    """

    def __init__(self, description: str, model: Any) -> None:
        self._model = model
        self._tree = ElementTree.fromstring(description)
        self._light: Any = None
        self._bounded: set[int] = set()
        # Statistics that are given would be computed; shapes of a default are not seen here.
        given = self._tree.findall(".//statistic")
        shapes = [geom.get("mesh") for geom in self._tree.findall(".//default//geom")]
        self._fits = not given and not any(shapes)
        self._options = {name: array.copy() for name, array in _arrays(model.opt).items()}
        self._numbers = _numbers(model.opt)
        self._before = {
            name: array.copy() for name, array in _arrays(model).items() if array.size < _LARGE
        }

    def of(self, description: str) -> Any:
        """Return a ``mujoco.MjModel`` of a description, as compiling would make it.

        It is the one that was given, which is written into, where the two differ by sizes and
        places of plain geoms; otherwise a new one. What an episode has written into it is gone,
        but for how it is drawn (``vis``, pictures, vertices).
        """
        import mujoco

        tree = ElementTree.fromstring(description)
        same = self._tree.attrib == tree.attrib and _same_but_for_sizes(self._tree, tree)
        if not (self._fits and same):
            return mujoco.MjModel.from_xml_string(description)
        if self._light is None:
            self._light = _without_shapes(self._tree)
        light = _without_shapes(tree)
        if not self._take(light):
            return mujoco.MjModel.from_xml_string(description)
        mujoco.mj_setConst(self._model, mujoco.MjData(self._model))
        return self._model

    def _take(self, light: Any) -> bool:
        """Write into the model what a model without shapes changes; return whether that can be."""
        model, before, after = _arrays(self._model), _arrays(self._light), _arrays(light)
        differ = [
            name for name in after if not np.array_equal(before[name], after[name], equal_nan=True)
        ]
        fit = all(
            before[name].shape == after[name].shape == model[name].shape
            for name in differ
            if name != _BOUNDS
        )
        # A body whose structure changes, such as one that is a cube no more, is compiled.
        if not fit or any(after[name].dtype.kind != "f" for name in differ):
            return False
        if _numbers(self._light) != _numbers(light):
            return False
        for name, array in self._options.items():
            getattr(self._model.opt, name)[...] = array
        for name, number in self._numbers.items():
            setattr(self._model.opt, name, number)
        for name, array in self._before.items():  # what an episode has written there
            model[name][...] = array
        for name in differ:
            if name != _BOUNDS:
                other = before[name] != after[name]
                model[name][other] = after[name][other]
        # Bounds are listed body by body; those of shapes, which the light ones lack, come after.
        for body in range(light.nbody):
            start, count = light.body_bvhadr[body], light.body_bvhnum[body]
            mine, theirs = (each[_BOUNDS][start : start + count] for each in (before, after))
            if body in self._bounded or (mine != theirs).any():
                self._bounded.add(body)
                there = self._model.body_bvhadr[body]
                model[_BOUNDS][there : there + count] = theirs
        return True


def _public(part: Any) -> dict[str, Any]:
    """Return all that a part of a model has, by name."""
    names = [attribute for attribute in dir(type(part)) if not attribute.startswith("_")]
    return {name: getattr(part, name) for name in names}


def _arrays(part: Any) -> dict[str, NDArray[Any]]:
    """Return every array of a part of a model by its name, as it lies there."""
    return {name: value for name, value in _public(part).items() if isinstance(value, np.ndarray)}


def _numbers(part: Any) -> dict[str, float]:
    """Return every single number of a part of a model by its name."""
    return {name: value for name, value in _public(part).items() if isinstance(value, int | float)}


def _same_but_for_sizes(one: ElementTree.Element, other: ElementTree.Element) -> bool:
    """Return whether what two elements hold differs by sizes of geoms alone.

    In a body with shapes of files nothing may differ, as its mass may be theirs, too.
    """
    if len(one) != len(other) or one.text != other.text:
        return False
    shaped = any(child.tag == "geom" and child.get("mesh") for child in one)
    may_differ = one.tag in ("body", "worldbody") and not shaped
    for mine, theirs in zip(one, other, strict=True):
        if mine.tag != theirs.tag or not _same_but_for_sizes(mine, theirs):
            return False
        if mine.attrib != theirs.attrib:
            kept = [{k: v for k, v in e.attrib.items() if k not in _SIZES} for e in (mine, theirs)]
            if mine.tag != "geom" or not may_differ or kept[0] != kept[1]:
                return False
    return True


def _without_shapes(tree: ElementTree.Element) -> Any:
    """Return a ``mujoco.MjModel`` of a description in which spheres stand for shapes of files."""
    import mujoco

    light = ElementTree.fromstring(ElementTree.tostring(tree))
    for geom in light.iter("geom"):
        if geom.attrib.pop("mesh", None) is not None:
            geom.set("type", "sphere")
            geom.set("size", "0.01")
    for asset in light.findall("asset"):
        for part in list(asset):
            part.attrib.pop("texture", None)
            if part.tag in ("mesh", "texture"):
                asset.remove(part)
    return mujoco.MjModel.from_xml_string(ElementTree.tostring(light, encoding="unicode"))
