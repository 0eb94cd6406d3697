"""The policy of a server, opened as a bundle is."""

from __future__ import annotations

import torch

from trimtab.observations import tree_map
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.files import inputs_of
from trimtab.policies.defaults import torch_defaults
from trimtab.policies.kinds.remote import RemotePolicy, client_of
from trimtab.types import PolicySpec

__all__ = ["open_remote"]


@torch_defaults()
def open_remote(address: str) -> Bundle:
    """Return the policy that a server at ``ws://host:port`` has; its golden rows are replayed.

    Raises:
        TrimtabError: if there is no such server, or its policy does not replay.
    """
    client = client_of(address)
    contract = client.contract
    spec = PolicySpec(
        contract.obs_dim, contract.horizon, contract.action_dim, contract.action_low,
        contract.action_high, contract.parts, contract.history,
    )  # fmt: skip
    policy = RemotePolicy(spec, contract.noise_shape, address, client.config["sha256"]).eval()
    obs, _ = inputs_of(client.golden, contract)
    policy.normalizer.take_range(tree_map(torch.tensor, obs))
    policy.evaluate_deterministic = contract.evaluate_deterministic
    return Bundle(policy, client.config, address)
