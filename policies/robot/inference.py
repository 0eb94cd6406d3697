"""Where the policy computes: in the control loop, or in another process.

An inference that takes longer than a control tick must not run in the loop's process, not even in a
thread: the interpreter's lock would delay the loop. One request is in flight at a time.
"""

from __future__ import annotations

import base64
import functools
import math
import queue
import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from pathlib import Path

import numpy as np

from trimtab.child import Child, ChildDied, end_children, killed_after
from trimtab.errors import TrimtabError
from trimtab.observations import FLAT
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.onnx_policy import OnnxPolicy, read_policy
from trimtab.policies.robot.plan import Array
from trimtab.settings import fits

__all__ = ["InLine", "Inference", "Worker"]

_OPENING = 60.0
"""Seconds in which a process must have opened the bundle."""


class Inference(ABC):
    """Computes chunks ``[1, H, A]`` from what a policy reads.

    A request is begun when none is in flight, or when nobody will ask for the one that is.
    """

    @property
    def restarts(self) -> int:
        """How often a process was started in the place of one that ended or hung."""
        return 0

    @abstractmethod
    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Begin a request.

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
    played. A request without an answer in time fails: its process is killed and started anew, and
    the failure is told once the new one is ready, so that no request waits for it and grows old. A
    thread writes to the process and reads from it, since a process that hangs takes no more than
    its pipe holds, and may have written half an answer.

    Args:
        folder: the bundle.
        contract: of the bundle.
        seconds: how long one request may take.

    Raises:
        TrimtabError: if the process cannot open the bundle.
    """

    def __init__(self, folder: str | Path, contract: Contract, seconds: float = 5.0) -> None:
        if not (fits(seconds, float) and 0 < seconds < math.inf):
            raise TrimtabError(f"load_policy: timeout={seconds}: give a positive number of seconds")
        self._folder, self._contract = str(Path(folder).absolute()), contract
        self._where, self._seconds = f"bundle {folder}", seconds
        self._restarts, self._closed = 0, False
        self._sha256 = self._start()
        self._number = 0  # of the newest request
        self._requests: queue.SimpleQueue[tuple[int, dict[str, str]] | None] = queue.SimpleQueue()
        self._answers: queue.SimpleQueue[tuple[int, str | TrimtabError]] = queue.SimpleQueue()
        self._thread = threading.Thread(target=self._converse, daemon=True)
        self._thread.start()

    @property
    def restarts(self) -> int:
        """How often a process was started in the place of one that ended or hung."""
        return self._restarts

    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Send the request."""
        parts = {**(read if isinstance(read, Mapping) else {FLAT: read}), "noise": noise}
        self._number += 1
        self._requests.put((self._number, {name: _text(part) for name, part in parts.items()}))

    def poll(self) -> Array | None:
        """Return the answer if all of it, or the end of the process, is there."""
        try:
            number, answer = self._answers.get_nowait()
        except queue.Empty:
            return None
        if number != self._number:  # whoever asked for it was interrupted
            return None
        if isinstance(answer, TrimtabError):
            raise answer
        shape = (1, self._contract.horizon, self._contract.action_dim)
        return np.frombuffer(base64.b64decode(answer), np.float32).reshape(shape)

    def close(self) -> None:
        """End the process."""
        self._closed = True
        self._end()  # the thread may wait for it
        self._requests.put(None)
        self._thread.join()

    def _end(self) -> None:
        self.child.process.kill()
        end_children([self.child])

    def _start(self) -> str:
        """Start the process; return the hash of the bundle that it has opened."""
        self.child = Child()
        try:
            if self._closed:  # while it was started
                raise TrimtabError(f"{self._where}: is closed")
            with killed_after(self.child, _OPENING):
                return str(self.child.call(_warm, self._folder))
        except BaseException as error:
            self._end()
            if isinstance(error, ChildDied):
                raise TrimtabError(f"{self._where}: the process for it ended: {error}") from error
            raise

    def _converse(self) -> None:
        while (asked := self._requests.get()) is not None:
            number, request = asked
            self._answers.put((number, self._answered(request)))

    def _answered(self, request: dict[str, str]) -> str | TrimtabError:
        try:
            with killed_after(self.child, self._seconds) as killed:
                return str(self.child.call(_answer, self._folder, request))
        except ChildDied as error:
            why = f"no answer in {self._seconds:g} s" if killed.is_set() else str(error)
        except Exception as error:  # the thread goes on, whatever the process has answered
            return TrimtabError(str(error))
        try:
            if self._start() != self._sha256:
                self._end()  # so that the next request finds no process, and tries again
                raise TrimtabError(f"{self._where}: its files are others now")
            self._restarts += 1
        except (TrimtabError, RuntimeError, OSError) as error:
            return TrimtabError(f"{error}; the process for it ended before: {why}")
        return TrimtabError(f"{self._where}: the process for it ended: {why}")


def _text(array: Array) -> str:
    """Return the bytes of an array as text: pictures as lists of numbers would take far longer."""
    return base64.b64encode(np.ascontiguousarray(array).tobytes()).decode()


# What follows is carried out in the other process.


@functools.cache
def _opened(folder: str) -> tuple[OnnxPolicy, str]:
    files = read_policy(folder)
    policy = OnnxPolicy(files.contract, files.model, f"bundle {folder}")
    policy.check(files.golden)  # also the warm-up of onnxruntime
    return policy, files.sha256


def _warm(folder: str) -> str:
    return _opened(folder)[1]


def _answer(folder: str, given: Mapping[str, str]) -> str:
    policy, _ = _opened(folder)
    shapes, types = policy.contract.input_shapes, policy.contract.input_types
    parts = {
        name: np.frombuffer(base64.b64decode(text), types[name]).reshape(1, *shapes[name])
        for name, text in given.items()
    }
    noise = parts.pop("noise")
    return _text(policy.infer(parts, noise))
