"""The process in which a served policy computes.

It may crash, hang or be killed: the server, its connections and the clients' histories live in
another process, and the next decision starts it again. It keeps nothing of a client: what a
recurrent policy hands on to its next decision goes back with the action.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import numpy as np

from trimtab.child import Child, ChildDied, end_children, killed_after
from trimtab.errors import TrimtabError
from trimtab.policies.agent import Advance, ArrayObs, Decide
from trimtab.policies.bundle.checked import NotFinite
from trimtab.policies.bundle.files import GOLDEN, Array, read_files
from trimtab.policies.opening import bundle_folder, load_policy
from trimtab.policies.serving.codec import pack, unpack
from trimtab.policies.serving.protocol import Refusal

__all__ = ["BACKENDS", "PolicyProcess"]

HandedOn = Mapping[str, Array]
"""The next value of each part that a policy hands on, by name; empty for most policies."""

_OPENING = 300.0
"""Seconds in which a policy must be open: a run's graph is made first, which needs torch."""


class PolicyProcess:
    """Decides in a process of its own, for one caller at a time.

    Attributes:
        config: all of the bundle's ``config.json``.
        golden: the bundle's golden rows, as their file has them.

    Args:
        policy: folder of a bundle or of a run.
        backend: what carries the policy out, one of ``BACKENDS``.
        seconds: how long one decision may take; the process is killed then.

    Raises:
        TrimtabError: if there is no such policy, or it is damaged.
    """

    def __init__(self, policy: str, *, backend: str = "onnx", seconds: float = 30.0) -> None:
        self.policy, self.backend, self.seconds = policy, backend, seconds
        self._turn = threading.Lock()
        self._closed = False
        self.config, self.golden = self._open()

    @property
    def process_id(self) -> int:
        """Number of the process, also of one that has ended."""
        return self._child.process.pid

    @contextmanager
    def turn(self, seconds: float | None = None) -> Iterator[None]:
        """Wait until no other caller decides; then this one may, for as long as the block lasts.

        Args:
            seconds: how long to wait; None for as long as it takes.

        Raises:
            Refusal: ``late`` if the turn does not come in time.
        """
        if not self._turn.acquire(timeout=-1 if seconds is None else max(seconds, 0.0)):
            raise Refusal("late", "other clients' decisions took longer than this one could wait")
        try:
            yield
        finally:
            self._turn.release()

    def close(self) -> None:
        """End the process at once, also in the middle of a decision; there are no others then."""
        self._closed = True
        self._end()

    def _end(self) -> None:
        self._child.process.kill()  # it has nothing to save, and may hang
        end_children([self._child])

    def _open(self) -> tuple[Mapping[str, Any], bytes]:
        """Start the process; return config and golden rows of the policy that it has opened."""
        self._child = Child()
        try:
            if self._closed:  # while it was started
                raise TrimtabError("serve: the server ends")
            with killed_after(self._child, _OPENING):
                config, golden = self._child.call(_open, self.policy, self.backend)
        except ChildDied as error:
            raise TrimtabError(f"serve: {self.policy}: cannot be opened ({error})") from error
        except BaseException:
            self._end()
            raise
        return config, base64.b64decode(golden)

    def decide(self, obs: ArrayObs, noise: Array) -> tuple[Array, HandedOn]:
        """Return actions ``[B, H, A]``, and what is handed on; the caller has its turn.

        Args:
            obs: of B rows, with their history and all inputs, checked.
            noise: ``[B, *noise_shape]``.

        Raises:
            Refusal: ``timeout``, ``worker`` or ``policy``.
        """
        if self._closed:
            raise Refusal("worker", "the server ends")
        if self._child.process.poll() is not None:
            self._open_again()
        request = base64.b64encode(pack({"obs": obs, "noise": noise})).decode()
        with killed_after(self._child, self.seconds) as killed:
            try:
                answer = self._child.call(_decide, request)
            except ChildDied as error:
                if self._closed:
                    raise Refusal("worker", "the server ends") from None
                if killed.is_set():
                    raise Refusal("timeout", f"it took more than {self.seconds:g} s") from error
                raise Refusal(
                    "worker", "the policy's process ended; it is started again"
                ) from error
            except (TrimtabError, RuntimeError) as error:
                raise Refusal("policy", "the policy failed with this observation") from error
        found = unpack(base64.b64decode(answer))
        return found["action"], found["handed_on"]

    def _open_again(self) -> None:
        try:
            config, _ = self._open()
        except TrimtabError as error:
            raise Refusal("worker", "the policy cannot be opened again") from error
        if config["sha256"] != self.config["sha256"]:
            self._end()
            raise Refusal("worker", "the policy's files are others now; start the server again")


# What follows is carried out in the process of the policy.

_decider: tuple[Decide, Advance | None]


def _open(policy: str, backend: str) -> tuple[Mapping[str, Any], str]:
    """Open a policy for the calls to come; return its config and its golden rows."""
    global _decider
    _decider = BACKENDS[backend](policy)
    config, files = read_files(bundle_folder(policy))
    return config, base64.b64encode(files[GOLDEN]).decode()


def _decide(request: str) -> str:
    given = unpack(base64.b64decode(request))
    decide, advance = _decider
    action = np.asarray(decide(given["obs"], given["noise"]), np.float32)
    handed_on = {} if advance is None else advance(given["obs"], given["noise"])
    return base64.b64encode(pack({"action": action, "handed_on": dict(handed_on)})).decode()


def _on_onnx(policy: str) -> tuple[Decide, Advance | None]:
    runner = load_policy(policy)
    return runner.predict, runner.inputs.advance


def _on_torch(policy: str) -> tuple[Decide, Advance | None]:
    import torch

    from trimtab.observations import tree_map
    from trimtab.policies.bundle.bundle import open_bundle
    from trimtab.policies.serving import remote  # noqa: F401 - its base may be served

    opened = open_bundle(bundle_folder(policy)).policy

    def decide(obs: ArrayObs, noise: Array) -> Array:
        with torch.no_grad():
            action: Array = opened(tree_map(torch.from_numpy, obs), torch.from_numpy(noise)).numpy()
        if not np.isfinite(action).all():  # onnxruntime's side checks the same
            raise NotFinite(f"{policy}: the policy gave an action that is not finite")
        return action

    return decide, opened.inputs.advance


BACKENDS: Mapping[str, Callable[[str], tuple[Decide, Advance | None]]] = {
    "onnx": _on_onnx,
    "torch": _on_torch,
}
"""What can carry out a served policy: onnxruntime, as on a robot, or torch."""
