"""A server's policy on a robot, played by ticks as one that is computed here."""

from __future__ import annotations

from typing import Any

from trimtab.policies.agent import ArrayObs
from trimtab.policies.robot.limits import check_limited
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.runner import PolicyRunner
from trimtab.policies.serving.client import PolicyClient

__all__ = ["ServedRunner"]


class ServedRunner(PolicyRunner):
    """A policy whose chunks come from ``trimtab serve``; the plan and the history are here.

    ``step`` waits for the answer. A control loop leaves out the ticks that pass meanwhile, and the
    plan's actions for them. With a fallback, an answer that does not come counts as a failure.

    Attributes:
        config: the ``config.json`` of the server's bundle.

    Args:
        address: ``ws://host:port``.
        seconds: how long to wait for an answer.
        settings: of :class:`PolicyRunner`: ``seed``, ``deterministic``, ``mode``, ``fallback`` and
            ``limits``.

    Raises:
        TrimtabError: if there is no such server, its golden rows do not replay, a setting does not
            fit its policy, or nobody states limits.
    """

    def __init__(self, address: str, *, seconds: float = 60.0, **settings: Any) -> None:
        self._client = PolicyClient(address, seconds=seconds)
        self.config = self._client.config
        try:
            check_limited(self._client.contract, settings.get("limits"), address)
            super().__init__(self._client.contract, None, address, **settings)
        except BaseException:
            self._client.close()
            raise

    def infer(self, obs: ArrayObs, noise: Array) -> Array:
        """Ask the server; shapes and errors are those of ``PolicyClient.predict``."""
        return self._client.predict(obs, noise)

    def advance(self, obs: ArrayObs, noise: Array) -> dict[str, Array]:
        """Ask the server what is handed on; errors are those of ``PolicyClient.advance``."""
        return self._client.advance(obs, noise)

    def close(self) -> None:
        """Close the connection."""
        super().close()
        self._client.close()
