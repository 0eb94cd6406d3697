"""Physics by its name: what keeps it, what changes it, and the trajectories that confirm it.

The contract tests hold each environment's seeded steps against its reference, which another process
has played.
"""

import contextlib
import dataclasses
import importlib.metadata
import importlib.util
import json
import logging
import os
import re
import sys
from collections.abc import Iterator
from pathlib import Path
from types import MappingProxyType
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest
from loading import load_module

from trimtab.envs import registry
from trimtab.envs.core import fingerprint as physics
from trimtab.envs.core.spec import Family, RawEnv
from trimtab.envs.registry import confirm, get_spec, list_envs
from trimtab.processor import processor_kind

pytestmark = pytest.mark.bits

ROOT = Path(__file__).resolve().parents[2]
PUBLISHED: dict[str, dict[str, str]] = json.loads(
    (Path(__file__).parent / "published_physics.json").read_text(encoding="utf-8")
)
"""Names by id and options, as results, bundles and datasets have carried them."""
OF_EACH_FAMILY = (
    "gym/Hopper-v5", "dmc/cheetah-run", "metaworld/push-v3", "robotics/FetchPush-v4",
    "ogbench/cube-single-v0", "pusht/PushT-v0",
)  # fmt: skip

SCRIPT = load_module(ROOT / "scripts" / "fingerprints.py")


def test_every_published_name_stands() -> None:
    names = SCRIPT.read_names()
    assert PUBLISHED.keys() <= names.keys() and names.keys() == set(list_envs())
    for id, by_options in PUBLISHED.items():
        held = {json.dumps(e["definition"]["options"]): e["name"] for e in names[id]}
        for options, name in by_options.items():
            assert held[json.dumps(json.loads(options))] == name, (id, options)
    every = [entry["name"] for entries in names.values() for entry in entries]
    assert len(set(every)) == len(every)
    assert all(entry["definition"]["id"] == id for id in names for entry in names[id])
    results = list((ROOT / "benchmarks" / "results").glob("**/*.parquet"))
    assert results
    for path in results:
        if "fingerprint" not in pq.read_schema(path).names:  # rows of a study, not of episodes
            continue
        table = pq.read_table(path, columns=["env", "fingerprint"])
        pairs = {(row["env"], row["fingerprint"]) for row in table.to_pylist()}
        for env, name in pairs:
            assert name in {entry["name"] for entry in names[env]}, (path, env)


def test_definitions_and_references_are_of_the_lock() -> None:
    lines = (ROOT / "requirements.lock").read_text(encoding="utf-8").split()
    pins = {_canonical(name): version for name, _, version in (x.partition("==") for x in lines)}
    for id, entries in SCRIPT.read_names().items():
        packages = entries[-1]["definition"]["packages"]
        assert packages == {name: pins[_canonical(name)] for name in packages}
        expected = physics.reference(
            id.split("/")[0], physics.reference_key(entries[-1]["definition"], {})
        )
        assert expected is not None, f"{id}: run `python scripts/fingerprints.py {id}`"
        assert np.isfinite(expected[:, 0]).any() and np.isfinite(expected[:, 1:]).any()
    assert sum(path.stat().st_size for path in SCRIPT.FOLDER.iterdir()) < 2_000_000


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_options_that_were_published_keep_their_name() -> None:
    for id, options in (
        ("metaworld/push-v3", {"reward": "sparse", "horizon": 150, "terminate_on_success": True}),
        ("robotics/PointMaze_UMaze-v3", {"terminate_on_success": True}),
    ):
        spec = get_spec(id, **options)
        assert spec.fingerprint == PUBLISHED[id][json.dumps(options, sort_keys=True)]
        assert confirm(spec).agrees  # by the reference of the task itself


def test_a_definition_tells_what_may_change(monkeypatch: pytest.MonkeyPatch) -> None:
    id = "gym/Swimmer-v5"
    spec, family = get_spec(id), SCRIPT.family_of(id)
    known = physics.definition(spec, family)
    assert physics.name(known) == spec.fingerprint == PUBLISHED[id]["{}"]
    others = {
        "revision": physics.definition(spec, dataclasses.replace(family, revision=2)),
        "outside": physics.definition(spec, family, "0123"),
        "edited": physics.definition(spec, family, "0124"),
        "horizon": physics.definition(dataclasses.replace(spec, horizon=999), family),
        "success": physics.definition(dataclasses.replace(spec, success_key="done"), family),
    }
    for part, value in (("timestep", 0.02), ("frame_skip", 3), ("integrator", "EULER")):
        changed = dataclasses.replace(spec, physics={**spec.physics, part: value})
        others[part] = physics.definition(changed, family)
    real = importlib.metadata.version
    monkeypatch.setattr(importlib.metadata, "version", lambda package: f"{real(package)}.1")
    others["version"] = physics.definition(spec, family)
    names = {part: physics.name(other) for part, other in others.items()}
    assert len({spec.fingerprint, *names.values()}) == 1 + len(names), names
    assert all(re.fullmatch("[0-9a-f]{12}", name) for name in names.values())
    assert all(physics.published_name(other) is None for other in others.values())


def test_options_make_another_name_without_a_step(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(physics, "trajectory", None)  # no reference could be wrong or right
    one = get_spec("gym/Swimmer-v5", horizon=123)
    assert one.fingerprint not in {get_spec("gym/Swimmer-v5", horizon=124).fingerprint}
    assert one.fingerprint != PUBLISHED["gym/Swimmer-v5"]["{}"]


OUTSIDE = """
from trimtab.envs.families.gym import FAMILY as GYM
import dataclasses
FAMILY = dataclasses.replace(GYM, name="mine", tasks={"T": GYM.tasks["Reacher-v5"]},
    build=lambda task, render: GYM.build("Reacher-v5", render=render))
"""


@contextlib.contextmanager
def _forgotten() -> Iterator[None]:
    """Nothing that was found or played before counts, nor what is found and played inside."""
    played = dict(physics._PLAYED)
    caches = (registry._families, registry._spec)
    try:
        for cache in caches:
            cache.cache_clear()
        physics._PLAYED.clear()
        yield
    finally:
        for cache in caches:
            cache.cache_clear()
        physics._PLAYED.clear()
        physics._PLAYED.update(played)


def test_a_family_from_outside_is_known_by_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(str(tmp_path))
    monkeypatch.setenv(registry.OUTSIDE, "mine_of_this_test")
    names = []
    for text in (OUTSIDE, OUTSIDE, OUTSIDE + "# a reward that was edited\n"):
        (tmp_path / "mine_of_this_test.py").write_text(text)
        importlib.invalidate_caches()
        sys.modules.pop("mine_of_this_test", None)
        with _forgotten():
            spec = get_spec("mine/T")
            names.append(spec.fingerprint)
            assert confirm(spec).agrees is None  # nothing to compare it with
    sys.modules.pop("mine_of_this_test", None)
    assert names[0] == names[1] != names[2]


def _pay_more(env: Any) -> None:
    step = env.step

    def paid(action: Any) -> Any:
        obs, reward, *rest = step(action)
        return obs, float(reward) + 1e-3, *rest

    env.step = paid


def _changed(id: str, change: str) -> Family:
    family = SCRIPT.family_of(id)

    def build(task: str, **options: Any) -> RawEnv:
        env = family.build(task, **options)
        if change == "reward":
            _pay_more(env)
            return env
        option = _model(env).opt
        if change == "gravity":
            option.gravity[2] *= 1.001
        if change == "mass":
            _model(env).body_mass[:] *= 1.001
        return env

    return dataclasses.replace(family, build=build)


def _model(env: Any) -> Any:
    return env.unwrapped.model


@pytest.mark.parametrize(
    ("id", "change"),
    [
        ("gym/Hopper-v5", "gravity"),
        ("gym/HalfCheetah-v5", "mass"),
        ("gym/Hopper-v5", "reward"),
        ("robotics/AntMaze_UMaze-v5", "gravity"),
        ("metaworld/reach-v3", "mass"),
        ("pusht/PushT-v0", "reward"),
    ],
)
def test_a_model_that_changed_under_its_version_is_noticed(
    id: str, change: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    families = {**registry._families(), id.split("/")[0]: _changed(id, change)}
    with _forgotten():
        monkeypatch.setattr(registry, "_families", lambda: MappingProxyType(families))
        with caplog.at_level(logging.WARNING):
            spec = get_spec(id)
        found = confirm(spec)
        assert found.agrees is False and found.deviation > 2 * found.tolerance
        assert spec.fingerprint != PUBLISHED[id]["{}"]
        assert spec.fingerprint in caplog.text and PUBLISHED[id]["{}"] in caplog.text
        again = dict(physics._PLAYED)
        registry._spec.cache_clear()
        assert get_spec(id).fingerprint == spec.fingerprint and dict(physics._PLAYED) == again
        monkeypatch.undo()


@pytest.mark.parametrize("id", OF_EACH_FAMILY)
def test_last_bits_change_nothing_but_the_bits(id: str) -> None:
    usual = confirm(get_spec(id))
    assert usual.agrees
    with _forgotten(), SCRIPT.disturbed(1e-13, seed=99):
        spec = get_spec(id)
        moved = confirm(spec)
    assert spec.fingerprint == PUBLISHED[id]["{}"]
    assert moved.agrees and 0 < moved.deviation < moved.tolerance
    assert moved.bits != usual.bits and len(moved.bits) == 12


def test_an_older_processor_knows_the_same_physics() -> None:
    ids = ("metaworld/push-v3", "robotics/FetchSlide-v4")  # contacts, where its bits are others
    older = {
        "OPENBLAS_CORETYPE": "Nehalem",
        "NPY_DISABLE_CPU_FEATURES": "AVX2 FMA3",
        "GLIBC_TUNABLES": "glibc.cpu.hwcaps=-AVX512F,-AVX512VL,-AVX2,-FMA,-FMA4",
    }
    for id, row in SCRIPT.measure_elsewhere(ids, older).items():
        assert row.get("agrees"), row
        assert row["name"] == PUBLISHED[id]["{}"]
        assert os.environ.get("GLIBC_TUNABLES") or row["processor"] != processor_kind()


def test_deviations_are_shares_of_each_numbers_scale() -> None:
    expected = np.array([[[100.0, 0.0, 1.0], [-50.0, 0.004, np.nan]]])
    moved = expected + np.array([[[0.0, 0.0, 0.0], [0.01, 1e-6, 7.0]]])
    apart = physics.relative_deviations(moved, expected)
    np.testing.assert_allclose(apart, [[[0, 0, 0], [1e-4, 1e-4, 0]]], rtol=1e-9)
    assert physics.compare(moved, expected) == pytest.approx(1e-4)
    assert physics.compare(moved[:, :1], expected) == np.inf
    assert physics.compare(np.full_like(expected, np.nan), expected) == np.inf


def test_a_reference_leaves_out_what_contacts_enlarge() -> None:
    id = "metaworld/push-v3"
    key, numbers = SCRIPT.reference_of(id)
    known = SCRIPT.definition_of(id)
    assert key == physics.reference_key(known, {})
    committed = physics.reference("metaworld", key)
    assert committed is not None
    np.testing.assert_array_equal(np.isnan(numbers).any(), True)
    assert physics.compare(numbers, np.where(np.isnan(numbers), np.nan, committed)) < 1e-5
    # Once left out, always left out: a number does not come back later in the episode.
    gone = np.isnan(numbers)
    assert (gone[:, 1:] >= gone[:, :-1]).all()


def test_a_new_definition_is_added_and_old_ones_stay() -> None:
    id = "gym/Reacher-v5"
    names, known = SCRIPT.read_names(), SCRIPT.definition_of(id)
    before = json.dumps(names)
    SCRIPT.enter(names, known)
    assert json.dumps(names) == before
    SCRIPT.enter(names, known | {"revision": 2})
    old, new = names[id]
    assert old["name"] == PUBLISHED[id]["{}"] and new["definition"]["revision"] == 2
    assert new["name"] == physics.name(known | {"revision": 2}) != old["name"]


def test_an_id_that_cannot_be_measured_does_not_stop_the_others() -> None:
    rows = SCRIPT.measure_elsewhere(["gym/Reacher-v5", "gym/Swimmer-v5"])
    assert [set(row) >= {"name", "bits"} for row in rows.values()] == [True, True]
    (row,) = SCRIPT.measure(["gym/Nothing-v5"])
    assert row["error"].startswith("TrimtabError: unknown environment")


def test_a_word_that_names_nothing_is_one_line_and_code_2(
    monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.argv", ["fingerprints.py", "nofamily"])
    assert SCRIPT.main() == 2
    assert "nofamily is neither a task nor a family" in capfd.readouterr().err
