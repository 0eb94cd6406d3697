"""What a family needs and does not find, and the line on a task that cannot be made."""

from __future__ import annotations

import dataclasses
import importlib.metadata
from types import MappingProxyType
from typing import Any

import pytest

from trimtab.envs import registry
from trimtab.envs.core.needs import unmet
from trimtab.envs.core.spec import Family, RawEnv
from trimtab.envs.registry import list_families, make
from trimtab.errors import TrimtabError

FAMILIES = {family.name: family for family in list_families()}


def pretend(monkeypatch: pytest.MonkeyPatch, **installed: str | None) -> None:
    """Let packages be installed in other versions, or not at all."""
    real = importlib.metadata.version

    def version(name: str) -> str:
        found = installed.get(name.replace("-", "_"), "")
        if found is None:
            raise importlib.metadata.PackageNotFoundError(name)
        return found or real(name)

    monkeypatch.setattr(importlib.metadata, "version", version)


def fails(monkeypatch: pytest.MonkeyPatch, name: str, error: BaseException) -> None:
    """Let a family raise what its simulator would raise."""

    def build(task: str, **_: Any) -> RawEnv:
        raise error

    broken = dataclasses.replace(FAMILIES[name], build=build)
    families = MappingProxyType({**FAMILIES, name: broken})
    monkeypatch.setattr(registry, "_families", lambda: families)


@pytest.mark.parametrize("name", FAMILIES)
def test_nothing_is_missing_here(name: str) -> None:
    assert unmet(FAMILIES[name]) == []


@pytest.mark.parametrize(
    ("name", "newest", "next_one", "cap"),
    [
        ("robosuite", "3.9.0", "3.10.0", "mujoco<3.10"),
        ("robotics", "3.11.0", "3.12.0", "mujoco<3.12"),
        ("dmc", "3.17.0", "4.0.0", "mujoco<4"),
        ("metaworld", "3.3.0", "3.3.1", "mujoco==3.3.0"),
        ("gym", "4.0.0", "", ""),
        ("ogbench", "4.0.0", "", ""),
    ],
)
def test_the_newest_mujoco_of_a_family_is_named(
    monkeypatch: pytest.MonkeyPatch, name: str, newest: str, next_one: str, cap: str
) -> None:
    pretend(monkeypatch, mujoco=newest)
    assert unmet(FAMILIES[name]) == []
    if next_one:
        pretend(monkeypatch, mujoco=next_one)
        assert unmet(FAMILIES[name]) == [f"{cap} ({next_one} is installed)"]


@pytest.mark.parametrize(("numpy", "works"), [("1.26.4", True), ("2.3.5", True), ("2.4.0", False)])
def test_the_newest_numpy_of_a_family_is_named(
    monkeypatch: pytest.MonkeyPatch, numpy: str, works: bool
) -> None:
    pretend(monkeypatch, numpy=numpy)
    told = [] if works else [f"numpy<2.4 ({numpy} is installed)"]
    assert unmet(FAMILIES["dmc"]) == told
    assert unmet(FAMILIES["gym"]) == []


def test_what_is_missing_is_named_once(monkeypatch: pytest.MonkeyPatch) -> None:
    pretend(monkeypatch, metaworld=None, gym_pusht=None, mujoco="4.0.0")
    assert unmet(FAMILIES["metaworld"]) == ["metaworld", "mujoco==3.3.0 (4.0.0 is installed)"]
    assert unmet(FAMILIES["pusht"]) == ["gym-pusht"]


@pytest.mark.parametrize("install", ["my-lab", "git+file:///home/anna/lab", "lab[arm]", "."])
def test_a_plug_in_says_what_it_needs_by_its_packages(install: str) -> None:
    family: Family = dataclasses.replace(FAMILIES["gym"], install=install)
    assert unmet(family) == []
    packages = ("mujoco", "no-such", "No_Such", "two words", "", "mujoco==9")
    missing = ["no-such", "two words", "", "mujoco==9"]
    assert unmet(dataclasses.replace(family, packages=packages)) == missing


@pytest.mark.parametrize("library", ["libGL.so.1", "libgthread-2.0.so.0", "libEGL.so"])
def test_a_library_of_the_system_is_asked_for(
    monkeypatch: pytest.MonkeyPatch, library: str
) -> None:
    text = f"{library}: cannot open shared object file: No such file or directory"
    fails(monkeypatch, "pusht", ImportError(text))
    with pytest.raises(TrimtabError, match=f"system's library {library}: install it") as told:
        make("pusht/PushT-v0")
    assert "pip" not in str(told.value) and "\n" not in str(told.value)


@pytest.mark.parametrize(
    ("id", "error", "cap"),
    [
        ("robosuite/Lift", TypeError("mj_fullM(): incompatible\narguments"), "mujoco<3.10"),
        ("robotics/FetchPush-v4", AssertionError(), "mujoco<3.12"),
        ("dmc/cheetah-run", AttributeError("no attribute 'cam_orthographic'"), "mujoco<4"),
        ("metaworld/push-v3", ImportError("cannot import name 'x'"), "mujoco==3.3.0"),
    ],
)
def test_a_task_that_a_newer_mujoco_breaks_names_the_cap(
    monkeypatch: pytest.MonkeyPatch, id: str, error: Exception, cap: str
) -> None:
    name = id.split("/")[0]
    fails(monkeypatch, name, error)
    pretend(monkeypatch, mujoco="4.0.0")
    with pytest.raises(TrimtabError) as told:
        make(id)
    line = str(told.value)
    assert line.startswith(f"{id} needs {cap} (4.0.0 is installed): pip install 'trimtab[{name}]'")
    assert "\n" not in line


def test_versions_within_the_limits_that_fail_are_told(monkeypatch: pytest.MonkeyPatch) -> None:
    error = AttributeError("'MjModel' object has no attribute 'light_directional'")
    fails(monkeypatch, "dmc", error)
    pretend(monkeypatch, mujoco="3.9.0")
    with pytest.raises(TrimtabError, match=r"it is known to run with mujoco 3.3.0 \(here 3.9.0\)"):
        make("dmc/cheetah-run")
