"""The random state of the device that a run is on."""

from __future__ import annotations

import pytest
import torch

from trimtab.benchmarks.training.random_states import device_random, set_device_random

DEVICES = ["cpu", *(f"{kind}:0" for kind in ("cuda", "xpu") if getattr(torch, kind).is_available())]


@pytest.mark.parametrize("device", DEVICES)
def test_what_is_drawn_next_comes_again(device: str) -> None:
    state = {"processor": torch.get_rng_state(), **device_random(device)}
    assert (device == "cpu") == (list(state) == ["processor"])  # its checkpoints stay as they were
    before = torch.randn(5, device=device)
    torch.set_rng_state(state["processor"])
    set_device_random(device, state)
    assert torch.equal(torch.randn(5, device=device), before)


@pytest.mark.parametrize("device", ["cuda", "cuda:1", "xpu"])
def test_a_state_that_the_processor_wrote_changes_nothing(device: str) -> None:
    """A run may go on on another device than it began on."""
    before = torch.get_rng_state()
    set_device_random(device, {"torch_random": before})
    assert torch.equal(torch.get_rng_state(), before)


def test_devices_without_such_a_state_have_none() -> None:
    assert device_random("meta") == {} and device_random("mps") == {}
