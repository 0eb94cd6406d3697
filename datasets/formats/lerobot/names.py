"""What LeRobot's features call their entries: ``names``, such as joints."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from trimtab.datasets.formats.lerobot.writer import ACTION
from trimtab.datasets.formats.naming import numbered

__all__ = ["feature_names"]


def feature_names(
    features: Mapping[str, Any], observed: Sequence[str], widths: Mapping[str, int]
) -> dict[str, list[str]]:
    """Return the names of the entries of observations and actions.

    Where several vectors are joined, each name has its vector's before it. A vector without names,
    or with one for all of its entries, as some writers have it, is numbered.

    Args:
        features: of ``info.json``.
        observed: names of the vectors that are joined to an observation, in their order.
        widths: numbers in a row of each feature.
    """
    found = []
    for feature in observed:
        short = feature.partition(".")[2]
        names = _names(features[feature], widths[feature])
        before = f"{short}." if len(observed) > 1 else ""
        found += [before + n for n in names] if names else numbered([(short, widths[feature])])
    width = widths.get(ACTION, 0)
    action = _names(features.get(ACTION, {}), width) or numbered([(ACTION, width)])
    return {"observation": found, "action": action}


def _names(feature: Mapping[str, Any], width: int) -> list[str]:
    """Return the names of a feature's entries: a list, indices by name, or lists by an axis."""
    names = feature.get("names")
    if isinstance(names, Mapping) and set(map(repr, names.values())) == {
        str(index) for index in range(len(names))
    }:  # such as {"x": 1, "y": 0}
        names = sorted(names, key=dict(names).__getitem__)
    if isinstance(names, Mapping):  # such as {"motors": [...]}
        names = [name for axis in names.values() if isinstance(axis, list) for name in axis]
    if not isinstance(names, list) or len(names) != width:
        return []
    return names if all(isinstance(name, str) for name in names) else []
