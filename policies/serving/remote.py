"""The policy of a server, opened as a bundle is."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import torch

from trimtab.errors import TrimtabError
from trimtab.observations import tree_map
from trimtab.policies.bundle.bundle import Bundle
from trimtab.policies.bundle.files import inputs_of
from trimtab.policies.bundle.withheld import spec_of
from trimtab.policies.defaults import torch_defaults
from trimtab.policies.kinds.remote import RemotePolicy, reach_servers_by, servers
from trimtab.policies.serving.protocol import host_of, is_loopback

if TYPE_CHECKING:
    from trimtab.policies.serving.client import PolicyClient

__all__ = ["SERVERS", "open_remote"]

SERVERS = "TRIMTAB_SERVERS"
"""Environment variable with the addresses, on other machines, that a bundle may name."""


@torch_defaults()
def open_remote(address: str) -> Bundle:
    """Return the policy that a server at ``ws://host:port`` has; its golden rows are replayed.

    Raises:
        TrimtabError: if there is no such server, or its policy does not replay.
    """
    if (before := servers.pop(address, None)) is not None:
        before.close()
    servers[address] = client = _client(address)
    contract = client.contract
    spec, sha = spec_of(contract), client.config["sha256"]
    policy = RemotePolicy(spec, contract.noise_shape, address, sha).eval()
    obs, _ = inputs_of(client.golden, contract)
    policy.normalizer.take_range(tree_map(torch.tensor, obs))
    policy.evaluate_deterministic = contract.evaluate_deterministic
    return Bundle(policy, client.config, address)


def _client(address: str) -> PolicyClient:
    try:
        from trimtab.policies.serving.client import PolicyClient
    except ModuleNotFoundError as error:
        raise TrimtabError(
            f"{address}: {error.name} is not installed; install Trimtab's extra 'serve'"
        ) from error
    return PolicyClient(address)


def _named_by_a_bundle(address: str) -> PolicyClient:
    """Connect to a server that a bundle names, if it is of this machine.

    A bundle may come from anywhere, and shall not choose who is sent observations.

    Raises:
        TrimtabError: if it is of another machine that the user has not named.
    """
    trusted = os.environ.get(SERVERS, "").split()
    if not is_loopback(host_of(address)) and address not in trusted:
        raise TrimtabError(
            f"a bundle wants to send observations to {address}; if you trust it, write this "
            f"address into the environment variable {SERVERS}"
        )
    return _client(address)


reach_servers_by(_named_by_a_bundle)
