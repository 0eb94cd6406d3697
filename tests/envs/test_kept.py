"""Models that come from memory: exact copies, each of its own."""

from __future__ import annotations

import types
from typing import Any

import mujoco
import numpy as np
import pytest

from trimtab.envs.engines import mujoco_kept
from trimtab.envs.engines.mujoco_kept import models_kept
from trimtab.envs.registry import make

BALL = '<mujoco><worldbody><body><freejoint/><geom size="{size}"/></body></worldbody></mujoco>'
SHAPE = (
    '<mujoco><asset><mesh name="m" file="shape.obj"/></asset><worldbody><body><freejoint/>'
    '<geom type="mesh" mesh="m"/></body></worldbody></mujoco>'
)


@pytest.fixture
def library(monkeypatch: pytest.MonkeyPatch) -> Any:
    """A module that compiles models, with nothing kept yet."""
    monkeypatch.setattr(mujoco_kept, "_models", {})
    module: Any = types.ModuleType("library")
    module.mujoco = mujoco
    return module


def pyramid(height: float) -> dict[str, bytes]:
    """Return the file of a shape."""
    corners = [(0, 0, 0), (0.1, 0, 0), (0, 0.1, 0), (0, 0, height)]
    lines = [f"v {x} {y} {z}" for x, y, z in corners]
    faces = ["f 1 3 2", "f 1 2 4", "f 2 3 4", "f 3 1 4"]
    return {"shape.obj": "\n".join([*lines, *faces, ""]).encode()}


def compiled(library: Any, text: str, assets: dict[str, bytes] | None = None) -> Any:
    with models_kept(library):
        return library.mujoco.MjModel.from_xml_string(text, assets)


def test_each_has_a_copy_of_its_own_and_few_are_kept(library: Any) -> None:
    text = BALL.format(size=0.1)
    first = compiled(library, text)
    expected = mujoco.MjModel.from_xml_string(text).body_mass.copy()
    first.body_mass[:] = 7.0
    second = compiled(library, text)
    assert second is not first
    np.testing.assert_array_equal(second.body_mass, expected)
    for size in range(1, 10):
        compiled(library, BALL.format(size=size))
    assert len(mujoco_kept._models) == 8


def test_who_only_reads_is_given_the_same(library: Any) -> None:
    text = BALL.format(size=0.1)
    with models_kept(library, only_read=True):
        first, second = (library.mujoco.MjModel.from_xml_string(text) for _ in range(2))
    assert second is first
    written = compiled(library, text)
    assert written is not first
    np.testing.assert_array_equal(written.body_mass, first.body_mass)


def test_other_files_are_another_model(library: Any) -> None:
    low, high = (compiled(library, SHAPE, pyramid(height)) for height in (0.1, 0.2))
    assert float(high.body_mass[1]) == pytest.approx(2 * float(low.body_mass[1]), rel=1e-5)


def test_a_description_that_names_its_files_by_their_content_is_enough(library: Any) -> None:
    assert not mujoco_kept.is_kept(SHAPE)
    with models_kept(library, named_by_content=True):
        first = library.mujoco.MjModel.from_xml_string(xml=SHAPE, assets=pyramid(0.1))
        assert mujoco_kept.is_kept(SHAPE)
        second = library.mujoco.MjModel.from_xml_string(SHAPE, {})
    np.testing.assert_array_equal(second.mesh_vert, first.mesh_vert)


def test_a_library_has_its_own_module_back(library: Any) -> None:
    with pytest.raises(ValueError, match="XML"):
        compiled(library, "no model")
    assert library.mujoco is mujoco


@pytest.mark.parametrize("id", ["metaworld/push-v3", "dmc/cheetah-run"])
def test_environments_share_no_model(id: str) -> None:
    models = []
    for _ in range(2):
        env = make(id)
        raw: Any = env.raw
        models.append(raw.model)
    assert models[0] is not models[1]
    models[0].body_mass[:] = 7.0
    assert not (models[1].body_mass == 7.0).any()
