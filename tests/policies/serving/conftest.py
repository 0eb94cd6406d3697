"""Servers of real policies, and a policy of several parts."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import torch
from serving import Served, running

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
    contract = {"env": "x/y", "control_rate": 20.0, "act_steps": 2}
    return save_bundle(policy, tmp_path_factory.mktemp("parts") / "bundle", contract=contract)


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
