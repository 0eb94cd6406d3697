"""What Minari's package makes of our metadata: the environment."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import Any

import gymnasium
import minari
import numpy as np
import pytest

from trimtab.datasets.formats.minari.metadata import env_spec
from trimtab.datasets.formats.minari.reader import load
from trimtab.datasets.formats.minari.writer import save
from trimtab.envs.register import gymnasium_id
from trimtab.envs.registry import get_spec, make

TASK, OPTIONS = "gym/InvertedPendulum-v5", {"horizon": 7}


def test_minari_makes_the_environment_again(
    make_dataset: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", str(tmp_path))
    recipe = {"name": "balanced"}
    made = dataclasses.replace(make_dataset(), env=TASK, env_options=OPTIONS, recipe=recipe)
    save(made, tmp_path / made.id)
    loaded = minari.load_dataset(made.id)
    assert loaded.storage.metadata["algorithm_name"] == "balanced"
    again = loaded.recover_environment()
    ours = make(TASK, **OPTIONS)
    try:
        assert again.spec is not None and again.spec.id == gymnasium_id(TASK)
        seen, _ = again.reset(seed=3)
        wanted, _ = ours.reset(seed=3)
        np.testing.assert_array_equal(seen, wanted)
        for step in range(7):
            seen, reward, _, truncated, _ = again.step(np.zeros(1, np.float32))
            wanted, given, *_ = ours.step(np.zeros(1, np.float32))
            np.testing.assert_array_equal(seen, wanted)
            assert (float(reward), truncated) == (float(given), step == 6)
    finally:
        again.close()
        ours.close()
    assert load(tmp_path / made.id).content_hash == made.content_hash


@pytest.mark.parametrize("options", [{}, {"horizon": 7}])
def test_the_environment_has_the_horizon_again(make_dataset: Any, options: dict[str, Any]) -> None:
    made = dataclasses.replace(make_dataset(), env=TASK, env_options=options)
    written = gymnasium.envs.registration.EnvSpec.from_json(env_spec(made)["env_spec"])
    again = gymnasium.make(written)
    assert again.get_wrapper_attr("horizon") == get_spec(TASK, **options).horizon
    again.close()


def test_the_specification_is_that_of_the_registered_task(make_dataset: Any) -> None:
    made = dataclasses.replace(make_dataset(), env=TASK, env_options={})
    written = gymnasium.envs.registration.EnvSpec.from_json(env_spec(made)["env_spec"])
    registered = gymnasium.spec(gymnasium_id(TASK))
    for name in ("id", "entry_point", "kwargs", "order_enforce", "disable_env_checker"):
        assert getattr(written, name) == getattr(registered, name), name


def test_a_strangers_task_is_not_claimed(make_dataset: Any, tmp_path: Path) -> None:
    dataset = dataclasses.replace(make_dataset(), fingerprint=None, recipe={"imported": "d4rl"})
    save(dataset, tmp_path / "x")
    metadata = json.loads((tmp_path / "x/data/metadata.json").read_text())
    assert "env_spec" not in metadata and metadata["algorithm_name"] == "unknown"
