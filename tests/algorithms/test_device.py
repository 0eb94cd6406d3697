"""Learners keep to their device: nothing is made on another one, and nothing waits for it.

Torch's ``meta`` device has shapes and no numbers. A tensor of the processor that meets one of it in
an operation raises, as one of a GPU would, so that all methods and policies are tried without one.
"""

from __future__ import annotations

import dataclasses
import inspect
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.benchmarks.settings.constructors import class_of
from trimtab.policies.base import Policy
from trimtab.policies.registry import policy_kinds
from trimtab.types import Batch, PolicySpec, Rollout

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "algorithm").glob("*.yaml"))
SMALL = {"hidden": [16, 16], "rollout_steps": 8, "batch_size": 8, "epochs": 2} | {
    "embedding": 16,
    "value_hidden": [16],
    "value_steps": 2,
    "value_rows": 64,
    "pretraining_updates": 0,
    "context": 4,
}
SPEC = PolicySpec(5, 2, 2, (-1.0, -0.5), (1.0, 2.0))
# What they do looks at numbers by its nature, so that it cannot run where there are none.
LOOKS = {
    "trpo": "its line search compares the surrogate and the divergence of each trial",
    "hnpg": "its line search is trpo's",
    "sb3_ppo": "Stable-Baselines3's own train() makes its tensors from arrays",
    "sb3_sac": "Stable-Baselines3's own train() makes its tensors from arrays",
    "sb3_td3": "Stable-Baselines3's own train() makes its tensors from arrays",
}


def made(file: Path, setup_of: Callable[..., Setup], device: str) -> Algorithm:
    section: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    keywords = section["algorithm"]
    kind = class_of(keywords.pop("_target_"), "algorithm")
    keywords |= {key: value for key, value in SMALL.items() if key in keywords}
    setup = setup_of(kind.uses, start=kind.starts_from)
    moved = dataclasses.replace(
        setup,
        device=device,
        base=None if setup.base is None else setup.base.to(device),
        oracles=tuple(oracle.to(device) for oracle in setup.oracles),
    )
    algorithm: Algorithm = kind(moved, **keywords)
    return algorithm


def on(value: Any, device: str) -> Any:
    """Return a batch or a rollout with all tensors on a device."""
    if isinstance(value, torch.Tensor):
        return value.to(device)
    if isinstance(value, Mapping):
        return {name: on(one, device) for name, one in value.items()}
    if dataclasses.is_dataclass(value) and not isinstance(value, type):
        return type(value)(**{k: on(v, device) for k, v in vars(value).items()})
    return value


def tensors(value: Any) -> list[torch.Tensor]:
    if isinstance(value, torch.Tensor):
        return [value]
    if isinstance(value, Mapping):
        return [one for part in value.values() for one in tensors(part)]
    if isinstance(value, list | tuple):
        return [one for part in value for one in tensors(part)]
    return []


@pytest.mark.parametrize("file", FILES, ids=lambda file: file.stem)
def test_an_update_keeps_to_its_device_and_waits_for_nothing(
    file: Path,
    setup_of: Callable[..., Setup],
    data_of: Callable[..., Batch | Rollout],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if file.stem in LOOKS:
        return
    algorithm = made(file, setup_of, "meta")
    for name in ("item", "tolist", "cpu", "numpy", "__bool__", "__float__", "__int__"):

        def waits(*_: object, name: str = name, **__: object) -> None:
            raise AssertionError(f"{file.stem} waits for its device by {name}")

        monkeypatch.setattr(torch.Tensor, name, waits)
    for seed in range(2):
        data = on(data_of(algorithm, seed=seed), "meta")
        if isinstance(data, Batch):
            data = dataclasses.replace(data, whole=seed == 0)
        elif isinstance(data, Rollout):
            rows = torch.zeros(3, dtype=torch.long, device="meta")
            data = dataclasses.replace(data, cut_rows=rows, ended_rows=rows)
        metrics = algorithm.update(data)
        assert all(one.device.type == "meta" and one.ndim == 0 for one in tensors(metrics))
    if type(algorithm).explore is not Algorithm.explore:
        for warmup in (True, False):
            action, aux = algorithm.explore(torch.zeros(3, 5, device="meta"), warmup=warmup)
            assert {one.device.type for one in tensors([action, aux])} == {"meta"}
    state = algorithm.state_dict()
    placed = {one.device.type for one in tensors(state)}
    assert placed <= {"meta"}


def alone() -> list[str]:
    """Kinds of policy that are made of a spec alone; the others are made of further policies."""
    found = []
    for kind, made_by in policy_kinds().items():
        _, *others = inspect.signature(made_by).parameters.values()
        if all(one.default is not one.empty for one in others):
            found.append((kind, next(iter(inspect.signature(made_by).parameters))))
    return [kind for kind, first in found if first == "spec"]


def test_what_is_left_out_exists_and_says_why() -> None:
    assert LOOKS.keys() <= {file.stem for file in FILES}


@pytest.mark.parametrize("kind", alone())
def test_a_policy_keeps_to_its_device(kind: str) -> None:
    policy: Policy = policy_kinds()[kind](SPEC).to("meta")  # type: ignore[call-arg]
    obs = torch.zeros(4, 5, device="meta")
    noise = policy.sample_noise(4)
    assert noise.device.type == "meta"
    assert policy(obs, noise).device.type == "meta"
    assert policy.act(obs, deterministic=True).shape == (4, 2, 2)
