"""MuJoCo's models, compared number by number."""

from __future__ import annotations

from typing import Any

import mujoco
import numpy as np


def numbers(model: Any) -> dict[str, np.ndarray]:
    """Return all that a model has, by name: arrays, sizes, options and statistics."""
    parts = [("", model), ("stat.", model.stat), ("opt.", model.opt)]
    found = {
        head + name: getattr(part, name)
        for head, part in parts
        for name in dir(part)
        if not name.startswith("_")
    }
    return {
        name: np.asarray(value)
        for name, value in found.items()
        if isinstance(value, np.ndarray | int | float)
    }


def assert_compiled(model: Any, description: str) -> None:
    """Hold a model to the one that MuJoCo compiles from a description."""
    expected = numbers(mujoco.MjModel.from_xml_string(description))
    found = numbers(model)
    assert found.keys() == expected.keys() and len(found) > 300
    for name, value in expected.items():
        np.testing.assert_array_equal(found[name], value, err_msg=name)
