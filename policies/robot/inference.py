"""Where the policy computes: in the control loop, or in another process.

An inference that takes longer than a control tick must not run in the loop's process, not even in a
thread: the interpreter's lock would delay the loop. One request is in flight at a time.
"""

from __future__ import annotations

import base64
import functools
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from trimtab.child import Child, ChildDied, end_children
from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.onnx_policy import OnnxPolicy, open_policy
from trimtab.policies.robot.plan import Array

__all__ = ["InLine", "Inference", "Worker"]


class Inference(ABC):
    """Computes chunks ``[1, H, A]`` from what a policy reads."""

    @abstractmethod
    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Begin a request, when none is in flight.

        Args:
            read: what the policy reads, of one row.
            noise: ``[1, *noise_shape]``.

        Raises:
            TrimtabError: if it fails.
        """

    @abstractmethod
    def poll(self) -> Array | None:
        """Return the answer ``[1, H, A]`` once it is there, or None; do not wait.

        Raises:
            TrimtabError: if the request failed.
        """

    def close(self) -> None:
        """Free what the inference holds."""
        return


class InLine(Inference):
    """Computes at once, in the caller's thread.

    Args:
        infer: ``(observation, noise) -> chunk``.
    """

    def __init__(self, infer: Callable[[ArrayObs, Array], Array]) -> None:
        self._infer = infer
        self._answer: Array | None = None

    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Compute the answer."""
        self._answer = self._infer(read, noise)

    def poll(self) -> Array | None:
        """Return the answer, once."""
        answer, self._answer = self._answer, None
        return answer


class Worker(Inference):
    """Computes in another process, which has opened the bundle before this returns.

    A process that dies or hangs raises no alarm by itself: the plan runs out, and the fallback is
    played. A thread writes to the process and reads from it, since a process that hangs takes no
    more than its pipe holds, and may have written half an answer.

    Args:
        folder: the bundle.
        contract: of the bundle.

    Raises:
        TrimtabError: if the process cannot open the bundle.
    """

    def __init__(self, folder: str | Path, contract: Contract) -> None:
        self._folder, self._contract = str(Path(folder).absolute()), contract
        self._where = f"bundle {folder}"
        self.child = Child()
        try:
            self.child.call(_warm, self._folder)
        except ChildDied as error:
            raise TrimtabError(f"{self._where}: the process for it ended: {error}") from error
        self._requests: queue.SimpleQueue[dict[str, str] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[str | TrimtabError] = queue.SimpleQueue()
        threading.Thread(target=self._converse, daemon=True).start()

    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Send the request."""
        parts = {**(read if isinstance(read, Mapping) else {FLAT: read}), "noise": noise}
        self._requests.put({name: _text(part) for name, part in parts.items()})

    def poll(self) -> Array | None:
        """Return the answer if all of it, or the end of the process, is there."""
        try:
            answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        if isinstance(answer, TrimtabError):
            raise answer
        shape = (1, self._contract.horizon, self._contract.action_dim)
        return np.frombuffer(base64.b64decode(answer), np.float32).reshape(shape)

    def close(self) -> None:
        """End the process."""
        self.child.process.kill()  # the thread may wait for it, and hold its pipes
        end_children([self.child])
        self._requests.put(None)

    def _converse(self) -> None:
        while (request := self._requests.get()) is not None:
            try:
                self._answers.put(self.child.call(_answer, self._folder, request))
            except ChildDied as error:
                self._answers.put(TrimtabError(f"{self._where}: the process for it ended: {error}"))
            except (TrimtabError, RuntimeError) as error:
                self._answers.put(TrimtabError(str(error)))


def _text(array: Array) -> str:
    """Return the bytes of an array as text: pictures as lists of numbers would take far longer."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


# What follows is carried out in the other process.


@functools.cache
def _opened(folder: str) -> OnnxPolicy:
    return open_policy(folder)  # its check is also the warm-up of onnxruntime


def _warm(folder: str) -> None:
    _opened(folder)


def _answer(folder: str, given: Mapping[str, str]) -> str:
    policy = _opened(folder)
    shapes, types = policy.contract.input_shapes, policy.contract.input_types
    parts = {
        name: np.frombuffer(base64.b64decode(text), types[name]).reshape(1, *shapes[name])
        for name, text in given.items()
    }
    noise = parts.pop("noise")
    return _text(policy.infer(parts, noise))
