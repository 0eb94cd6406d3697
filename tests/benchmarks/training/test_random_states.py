"""The random state of the device that a run is on."""

from __future__ import annotations

import pytest
import torch

from trimtab.benchmarks.training.random_states import random_states, set_random_states

DEVICES = ["cpu", *(f"{kind}:0" for kind in ("cuda", "xpu") if getattr(torch, kind).is_available())]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_drawn_next_comes_again(device: str) -> None:
    state = random_states(device)
    assert (device == "cpu") == (list(state) == ["torch_random", "numpy_random"])
    before = torch.randn(5, device=device)
    set_random_states(device, state)
    assert torch.equal(torch.randn(5, device=device), before)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
def test_a_state_that_the_processor_wrote_changes_nothing(device: str) -> None:
    """A run may go on on another device than it began on."""
    before = random_states("cpu")
    set_random_states(device, before)
    assert torch.equal(torch.get_rng_state(), before["torch_random"])


def test_devices_without_such_a_state_have_none() -> None:
    for device in ("meta", "mps"):
        assert list(random_states(device)) == ["torch_random", "numpy_random"]
