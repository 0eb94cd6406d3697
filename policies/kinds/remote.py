"""A policy that a server computes, which is reached over a websocket and known by its answers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, tree_map
from trimtab.policies.base import Policy
from trimtab.policies.serving.protocol import host_of, is_loopback
from trimtab.types import Obs, PolicySpec

if TYPE_CHECKING:
    from trimtab.policies.serving.client import PolicyClient

__all__ = ["RemotePolicy", "client_of"]

_clients: dict[str, PolicyClient] = {}
"""The connections of this process, by address."""


def client_of(address: str) -> PolicyClient:
    """Return this process's connection to a server, opened if there is none.

    Raises:
        TrimtabError: if the server cannot be reached or is no policy server of Trimtab.
    """
    if address not in _clients:
        try:
            from trimtab.policies.serving.client import PolicyClient
        except ModuleNotFoundError as error:
            raise TrimtabError(
                f"{address}: {error.name} is not installed; install Trimtab's extra 'serve'"
            ) from error
        _clients[address] = PolicyClient(address)
    return _clients[address]


class RemotePolicy(Policy):
    """``action = server(obs, noise)``: no weights and no gradients here.

    It can be steered by its noise, searched, sampled and judged as a black box
    (:mod:`trimtab.policies.kinds.black_box`). Normalisation is inside of the server's policy; the
    normaliser beside it only tells others in which range observations lie.

    A bundle of what steers it names its address. A bundle may come from anywhere, so such an
    address is used only if it is of this machine, or if this process has been given it by its user.

    Args:
        spec: shapes and limits.
        noise: shape of one row's noise.
        address: ``ws://host:port``.
        sha: the ``sha256`` of the bundle that the server has.
    """

    derived = frozenset({"address"})  # a run is known by the policy, wherever it is served

    def __init__(self, spec: PolicySpec, noise: Sequence[int], address: str, sha: str) -> None:
        shape = tuple(int(length) for length in noise)
        super().__init__(spec, shape, noise=list(shape), address=str(address), sha=str(sha))
        self.address, self.sha = str(address), str(sha)

    def forward(self, obs: Obs, noise: Tensor) -> Tensor:
        """Return raw actions ``[B, H, A]``.

        Raises:
            TrimtabError: if a gradient is to pass through, the policy is being exported, or the
                server does not answer or has another policy.
        """
        if torch.compiler.is_exporting():
            raise TrimtabError(
                f"a policy that {self.address} computes is no part of a graph; export its bundle "
                "there, and steer that"
            )
        parts = dict(obs) if isinstance(obs, Mapping) else {FLAT: obs}
        if torch.is_grad_enabled() and any(x.requires_grad for x in (*parts.values(), noise)):
            raise TrimtabError(
                "a remote policy gives no gradients; choose a method that steers it from outside"
            )
        client = self._client()
        given = {name: parts[name] for name in self.spec.layout}
        arrays = tree_map(lambda x: x.detach().cpu().numpy(), given if self.spec.parts else obs)
        action = client.predict(arrays, noise.detach().cpu().numpy())
        return torch.from_numpy(action).to(noise.device)

    def _client(self) -> PolicyClient:
        if self.address not in _clients and not is_loopback(host_of(self.address)):
            raise TrimtabError(
                f"a bundle wants to send observations to {self.address}; if you trust it, call "
                "trimtab.policies.kinds.remote.client_of with the address first"
            )
        client = client_of(self.address)
        if client.config["sha256"] != self.sha:
            raise TrimtabError(
                f"{self.address}: has another policy now; serve the bundle with sha256 {self.sha}"
            )
        return client
