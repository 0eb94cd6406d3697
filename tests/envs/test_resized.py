"""A model that takes other sizes has the bits of one that is compiled with them."""

from __future__ import annotations

from typing import Any

import mujoco
import pytest
from models import assert_compiled

from trimtab.envs.engines.mujoco_resized import ResizedModel

SCENE = """
<mujoco model="scene">
  <asset><mesh name="shape" vertex="0 0 0  0.1 0 0  0 0.1 0  0 0 0.1  0.1 0.1 0.2"/></asset>
  <worldbody>
    <geom name="floor" type="plane" size="1 1 0.1"/>
    <body name="arm" pos="0 0 0.5">
      <joint name="turn" axis="0 1 0"/>
      <geom name="skin" type="mesh" mesh="shape"/>
      <geom name="bone" type="capsule" size="0.02 {bone}"/>
      <body name="finger" pos="0 0 0.2">
        <joint name="bend" axis="1 0 0"/>
        <geom name="tip" type="box" size="0.02 0.02 {tip}"/>
      </body>
    </body>
    <body name="cube" pos="0.5 0 0.1">
      <freejoint/>
      <geom name="{name}" type="box" size="{cube} 0.03 0.03"/>
      <geom name="knob" type="sphere" size="0.01" pos="{knob} 0 0.04"/>{more}
    </body>
  </worldbody>
</mujoco>
"""
USUAL = {"bone": 0.1, "tip": 0.05, "cube": 0.04, "knob": 0.0, "name": "sides", "more": ""}


def described(**other: Any) -> str:
    return SCENE.format(**{**USUAL, **other})


def test_sizes_are_taken_one_after_another() -> None:
    model = mujoco.MjModel.from_xml_string(described())
    resized = ResizedModel(described(), model)
    others: list[dict[str, float]] = [
        {"cube": 0.05},
        {"tip": 0.08, "knob": 0.02},
        {},
        {"tip": 0.2, "cube": 0.06},
    ]
    for other in others:
        assert resized.of(described(**other)) is model
        assert_compiled(model, described(**other))


def test_what_was_written_into_the_model_is_gone() -> None:
    model = mujoco.MjModel.from_xml_string(described())
    resized = ResizedModel(described(), model)
    model.body_mass[1], model.geom_rgba[2], model.body_pos[3] = 7.0, 0.5, 1.0
    model.opt.timestep, model.opt.gravity[2], model.opt.iterations = 0.5, 1.0, 3
    assert resized.of(described(cube=0.05)) is model
    assert_compiled(model, described(cube=0.05))


@pytest.mark.parametrize(
    "other",
    [
        {"bone": 0.2},  # in a body with a shape, whose mass counts too
        {"name": "other"},
        {"name": 'sides" rgba="1 0 0 1'},
        {"more": '<geom size="0.1"/>'},
        {"more": "<!-- a word -->", "cube": 0.1, "name": "other"},
    ],
)
def test_another_difference_is_compiled(other: dict[str, Any]) -> None:
    model = mujoco.MjModel.from_xml_string(described())
    resized = ResizedModel(described(), model)
    made = resized.of(described(**other))
    assert made is not model
    assert_compiled(made, described(**other))
    assert_compiled(model, described())
    assert resized.of(described(cube=0.05)) is model  # and it goes on from the first one


def test_defaults_are_no_sizes_of_one_geom() -> None:
    def scene(size: float) -> str:
        head = f'<default><geom size="{size}"/></default>'
        return described().replace("<asset>", f"{head}<asset>")

    resized = ResizedModel(scene(0.1), mujoco.MjModel.from_xml_string(scene(0.1)))
    assert_compiled(resized.of(scene(0.2)), scene(0.2))


CUBE = """
<mujoco><worldbody><body><freejoint/>
  <geom type="box" size="{size} 0.1 0.1"/><geom type="sphere" size="0.05"/>
</body></worldbody></mujoco>
"""
GIVEN = '<statistic meansize="0.3" extent="4"/>'
DEFAULT = '<default><default class="skin"><geom type="mesh" mesh="shape"/></default></default>'


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (CUBE.format(size=0.1), CUBE.format(size=0.2)),  # its inertia has one axis no more
        *(
            (described().replace("<asset>", f"{head}<asset>"), text)
            for head in (GIVEN, DEFAULT)
            for text in [described(cube=0.2).replace("<asset>", f"{head}<asset>")]
        ),
    ],
)
def test_what_might_come_out_otherwise_is_compiled(one: str, other: str) -> None:
    model = mujoco.MjModel.from_xml_string(one)
    made = ResizedModel(one, model).of(other)
    assert made is not model
    assert_compiled(made, other)
    assert_compiled(model, one)
