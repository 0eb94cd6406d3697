"""A policy that a server computes, which is reached over a websocket and known by its answers."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, tree_map
from trimtab.policies.agent import ArrayObs, PolicyInputs
from trimtab.policies.base import Policy
from trimtab.policies.memory import state_parts
from trimtab.types import Obs, PolicySpec

__all__ = ["RemotePolicy", "Server", "reach_servers_by", "servers"]


class Server(Protocol):
    """A connection to what computes a policy."""

    @property
    def config(self) -> Mapping[str, Any]:
        """The ``config.json`` of the policy's bundle."""
        ...

    def predict(self, obs: ArrayObs, noise: Any) -> Any:
        """Return action chunks ``[B, H, A]`` of B rows."""
        ...

    def advance(self, obs: ArrayObs, noise: Any) -> dict[str, Any]:
        """Return what is handed on to the next decision of B rows, by part."""
        ...

    def close(self) -> None:
        """End the connection."""
        ...


servers: dict[str, Server] = {}
"""The connections of this process, by address."""

_connect: Callable[[str], Server] | None = None


def reach_servers_by(connect: Callable[[str], Server]) -> None:
    """Set how a policy out of a bundle reaches the server that the bundle names.

    Policies know no sockets: :mod:`trimtab.policies.serving.remote` sets this as it is imported.
    """
    global _connect
    _connect = connect


class RemotePolicy(Policy):
    """``action = server(obs, noise)``: no weights and no gradients here.

    It can be steered by its noise, searched, sampled and judged as a black box
    (:mod:`trimtab.policies.kinds.black_box`). Normalisation is inside of the server's policy; the
    normaliser beside it only tells others in which range observations lie.

    Args:
        spec: shapes and limits.
        noise: shape of one row's noise.
        address: ``ws://host:port``.
        sha: the ``sha256`` of the bundle that the server has.
    """

    computed_by_torch = False
    derived = frozenset({"address"})  # a run is known by the policy, wherever it is served

    def __init__(self, spec: PolicySpec, noise: Sequence[int], address: str, sha: str) -> None:
        shape = tuple(int(length) for length in noise)
        super().__init__(spec, shape, noise=list(shape), address=str(address), sha=str(sha))
        self.address, self.sha = str(address), str(sha)

    @property
    def inputs(self) -> PolicyInputs:
        """What it reads at each decision, and what it hands on to the next one."""
        found = super().inputs
        if not state_parts(found.parts):
            return found
        return replace(found, advance=lambda obs, noise: self._server().advance(obs, noise))

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
        given = {name: parts[name] for name in self.spec.layout}
        arrays = tree_map(lambda x: x.detach().cpu().numpy(), given if self.spec.parts else obs)
        action = self._server().predict(arrays, noise.detach().cpu().numpy())
        return torch.from_numpy(action).to(noise.device)

    def _server(self) -> Server:
        if self.address not in servers:
            if _connect is None:
                raise TrimtabError(
                    f"this process reaches no {self.address}; import "
                    "trimtab.policies.serving.remote, and install Trimtab's extra 'serve'"
                )
            servers[self.address] = _connect(self.address)
        server = servers[self.address]
        if server.config["sha256"] != self.sha:
            raise TrimtabError(
                f"{self.address}: has another policy now; serve the bundle with sha256 {self.sha}"
            )
        return server
