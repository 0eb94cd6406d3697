"""What every algorithm keeps to; the registry is ``conf/algorithm``, and all of it is tested."""

from __future__ import annotations

import copy
import importlib
import json
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import pytest
import torch
from omegaconf import OmegaConf

from trimtab.algorithms.base import Algorithm, Setup
from trimtab.policies.base import Policy
from trimtab.policies.registry import build_policy
from trimtab.types import Batch, Rollout, TrimtabError

FILES = sorted((Path(__file__).resolve().parents[2] / "conf" / "algorithm").glob("*.yaml"))
SetupOf = Callable[..., Setup]
BatchOf = Callable[..., Batch]
DataOf = Callable[..., Batch | Rollout]
SMALL = {"hidden": [16, 16], "rollout_steps": 8, "batch_size": 8, "epochs": 2} | {
    "embedding": 16,
    "value_hidden": [16],
    "value_steps": 2,
    "value_rows": 64,
    "pretraining_updates": 0,
    "context": 4,
}


def chosen(file: Path) -> tuple[Any, dict[str, Any]]:
    """The class and the keywords of a settings file, with networks cut to a testable width."""
    section: Any = OmegaConf.to_container(OmegaConf.load(file), resolve=True)
    keywords = section["algorithm"]
    module, _, name = keywords.pop("_target_").rpartition(".")
    keywords |= {key: value for key, value in SMALL.items() if key in keywords}
    return getattr(importlib.import_module(module), name), keywords


@pytest.fixture(params=FILES, ids=[file.stem for file in FILES])
def build(request: pytest.FixtureRequest, setup_of: SetupOf) -> Callable[..., Algorithm]:
    """Make the algorithm of one settings file from a seed."""
    kind, keywords = chosen(request.param)

    def make(seed: int = 0, plan: int = 4) -> Algorithm:
        setup = setup_of(kind.uses, plan=plan, start=kind.starts_from)
        torch.manual_seed(seed)
        algorithm: Algorithm = kind(setup, **keywords)
        return algorithm

    return make


def leaves(value: Any, path: str = "") -> list[tuple[str, Any]]:
    """Every value of a nested state with its path."""
    if isinstance(value, Mapping):
        return [leaf for k, v in value.items() for leaf in leaves(v, f"{path}/{k}")]
    if isinstance(value, list | tuple):
        return [leaf for k, v in enumerate(value) for leaf in leaves(v, f"{path}/{k}")]
    return [(path, value)]


def same(first: Any, second: Any) -> bool:
    """Whether two nested states are equal to the last bit."""
    pairs = zip(leaves(first), leaves(second), strict=True)
    return all(
        a[0] == b[0] and (torch.equal(a[1], b[1]) if torch.is_tensor(a[1]) else a[1] == b[1])
        for a, b in pairs
    )


def learns(algorithm: Algorithm) -> bool:
    return bool(algorithm.state())


def explores(algorithm: Algorithm) -> bool:
    return type(algorithm).explore is not Algorithm.explore


def test_there_are_settings_files() -> None:
    assert {"bc", "sac", "dsrl_sac", "dsrl_na", "frozen"} <= {file.stem for file in FILES}


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_settings_file_names_a_method(file: Path) -> None:
    kind, _ = chosen(file)
    assert issubclass(kind, Algorithm) and kind.__module__.startswith("trimtab.algorithms.")


def test_metrics_are_finite_numbers_of_the_same_names(
    build: Callable[..., Algorithm], data_of: DataOf
) -> None:
    algorithm = build()
    names = None
    for step in range(3):
        metrics = algorithm.update(data_of(algorithm, seed=step))
        assert names in (None, list(metrics))
        names = list(metrics)
        assert all(math.isfinite(float(value)) for value in metrics.values()), metrics
        assert not any(getattr(value, "requires_grad", False) for value in metrics.values())
    assert bool(names) == learns(algorithm)
    assert algorithm.batch_size >= 1 and algorithm.warmup_steps >= 0
    learns_online = algorithm.updates_per_decision > 0 or algorithm.rollout_steps > 0
    assert explores(algorithm) == learns_online


@pytest.mark.bits
@pytest.mark.parametrize("plan", [2, 4])
def test_same_seed_gives_the_same_numbers(
    build: Callable[..., Algorithm], data_of: DataOf, plan: int
) -> None:
    runs = []
    for seed in (3, 3, 4):
        algorithm = build(seed=seed, plan=plan)
        metrics = [algorithm.update(data_of(algorithm, seed=step)) for step in range(3)]
        runs.append((metrics, copy.deepcopy(algorithm.state_dict())))
    assert runs[0][0] == runs[1][0]
    assert same(runs[0][1], runs[1][1])
    assert (runs[0][0] != runs[2][0]) == learns(algorithm)


def test_update_changes_what_is_judged(build: Callable[..., Algorithm], data_of: DataOf) -> None:
    algorithm = build()
    before = copy.deepcopy(algorithm.policy.state_dict())
    for step in range(20):  # some update their actor once for several updates of their critics
        algorithm.update(data_of(algorithm, seed=step))
    assert same(before, algorithm.policy.state_dict()) != learns(algorithm)


@pytest.mark.bits
def test_goes_on_from_its_state_to_the_same_bits(
    build: Callable[..., Algorithm], batch_of: BatchOf, data_of: DataOf
) -> None:
    first = build(seed=1)
    for step in range(2):
        first.update(data_of(first, seed=step))
    state = copy.deepcopy(first.state_dict())
    second = build(seed=2)
    second.load_state_dict(copy.deepcopy(state))
    assert same(second.state_dict(), state)
    for step in (2, 3):
        metrics = []
        for algorithm in (first, second):
            torch.manual_seed(70 + step)
            metrics.append(algorithm.update(data_of(algorithm, seed=step)))
        assert metrics[0] == metrics[1]
    assert same(first.state_dict(), second.state_dict())
    obs = batch_of(first).obs
    torch.testing.assert_close(
        first.policy.act(obs, deterministic=True),
        second.policy.act(obs, deterministic=True),
        atol=0,
        rtol=0,
    )


def test_state_is_plain(build: Callable[..., Algorithm], data_of: DataOf) -> None:
    algorithm = build()
    algorithm.update(data_of(algorithm))
    for path, value in leaves(algorithm.state_dict()):
        assert value is None or isinstance(value, torch.Tensor | int | float | str), path


@pytest.mark.parametrize("warmup", [True, False])
@pytest.mark.parametrize("plan", [2, 4])
def test_explores_with_what_is_executed(
    build: Callable[..., Algorithm], batch_of: BatchOf, warmup: bool, plan: int
) -> None:
    algorithm = build(plan=plan)
    obs = batch_of(algorithm).obs[:7]
    if not explores(algorithm):
        with pytest.raises(TrimtabError, match="online_steps=0"):
            algorithm.explore(obs, warmup=warmup)
        return
    action, aux = algorithm.explore(obs, warmup=warmup)
    assert action.shape == (7, 2, 2) and not action.requires_grad
    low, high = torch.tensor([-1.0, -0.5]), torch.tensor([1.0, 2.0])
    assert ((action >= low) & (action <= high)).all()
    assert action.flatten(1).std(0).min() > 0, "every row tries the same"
    assert {name: tuple(value.shape[1:]) for name, value in aux.items()} == algorithm.aux_shapes
    assert all(len(value) == 7 and not value.requires_grad for value in aux.values())
    again, _ = algorithm.explore(obs, warmup=warmup)
    assert not torch.equal(action, again), "it does not explore"


@pytest.mark.parametrize("plan", [2, 4])
def test_what_is_judged_can_be_exported(
    build: Callable[..., Algorithm], batch_of: BatchOf, data_of: DataOf, plan: int
) -> None:
    algorithm = build(plan=plan)
    algorithm.update(data_of(algorithm))
    policy = algorithm.policy
    assert isinstance(policy, Policy)
    spec = policy.spec
    observed = sum(part.size for part in spec.observed.values())  # and what its user gives
    assert (observed, spec.action_dim) == (5, 2) and spec.horizon >= 2
    assert (spec.action_low, spec.action_high) == ((-1.0, -0.5), (1.0, 2.0))
    rebuilt = build_policy(json.loads(json.dumps(policy.config())))
    rebuilt.load_state_dict(policy.state_dict())
    obs = batch_of(algorithm).obs
    noise = policy.sample_noise(len(obs))
    with torch.no_grad():
        action = policy(obs, noise)
        assert torch.equal(rebuilt(obs, noise), action)
    assert action.shape == (len(obs), spec.horizon, 2)


@pytest.mark.parametrize(
    "build", [f for f in FILES if "base" in chosen(f)[0].uses], ids=lambda f: f.stem, indirect=True
)
def test_leaves_the_base_as_it_is(
    build: Callable[..., Algorithm], data_of: DataOf, setup_of: SetupOf
) -> None:
    algorithm = build()
    given = setup_of({"base"}).base
    assert given is not None
    for step in range(3):
        algorithm.update(data_of(algorithm, seed=step))
    # A student's weights are its own: the base that it learns from is its teacher.
    held = getattr(algorithm, "teacher", algorithm.policy).state_dict()
    for name, value in given.state_dict().items():
        assert torch.equal(held[name] if name in held else held[f"base.{name}"], value), name


@pytest.mark.parametrize(
    "file", [f for f in FILES if "start" in chosen(f)[0].uses], ids=lambda f: f.stem
)
def test_learns_on_a_copy_of_its_start(data_of: DataOf, setup_of: SetupOf, file: Path) -> None:
    kind, keywords = chosen(file)
    setup = setup_of({"start"}, start=kind.starts_from)
    assert setup.base is not None
    before = copy.deepcopy(setup.base.state_dict())
    algorithm = kind(setup, **keywords)
    for step in range(3):
        algorithm.update(data_of(algorithm, seed=step))
    assert same(before, setup.base.state_dict())
