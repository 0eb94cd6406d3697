"""Servers of real policies, and a policy of several parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import numpy as np
import pytest
import torch
from foreign_networks import contract, recurrent
from serving import Served, running

from trimtab.benchmarks.artefacts.export import export_policy
from trimtab.policies.bundle.bundle import save_bundle
from trimtab.policies.kinds.flow import FlowPolicy
from trimtab.types import Part, PolicySpec

PARTS = PolicySpec(
    2 * (3 + 12) + 1, 4, 2, (-1.0, -0.5), (1.0, 2.0),
    parts={
        "state": Part((3,)), "picture": Part((2, 2, 3), "uint8"), "guidance": Part((1,), given=1.5),
    },
    history=2,
)  # fmt: skip
"""Two parts with a history of two, and an input that the user chooses."""


@pytest.fixture(scope="session")
def parts_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A policy of several parts with a history and an input."""
    torch.manual_seed(5)
    policy = FlowPolicy(PARTS, hidden=(16,), sampling_steps=2)
    told = {"env": "x/y", "control_rate": 20.0, "act_steps": 2}
    return save_bundle(policy, tmp_path_factory.mktemp("parts") / "bundle", contract=told)


@pytest.fixture(scope="session")
def recurrent_bundle(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A GRU of others, which hands its state on."""
    place, draw = tmp_path_factory.mktemp("gru"), np.random.default_rng(0)
    shapes = {"w": (1, 9, 4), "r": (1, 9, 3), "b": (1, 18), "out": (3, 1)}
    weights = {name: draw.normal(size=shape).astype(np.float32) for name, shape in shapes.items()}
    network = recurrent(place / "gru.onnx", "GRU", weights, 3)
    said = contract(
        place / "contract.yaml", control_rate=25, task="gym/InvertedPendulum-v5",
        network={"action": "actions", "states": {"h_in": "h_out"}},
        observation={"terms": {"o": {"size": 4}}},
    )  # fmt: skip
    export_policy(str(network), str(place / "base"), contract=str(said))
    return place / "base"


@pytest.fixture
def serve() -> Iterator[Callable[..., Served]]:
    """Start servers that end with the test."""
    with ExitStack() as stack:
        yield lambda policy, **settings: stack.enter_context(running(policy, **settings))


@pytest.fixture(scope="module")
def served(bundle_of: Callable[[str], Path]) -> Iterator[Served]:
    """One server for tests that leave it as it is."""
    with running(bundle_of("flow")) as found:
        yield found
