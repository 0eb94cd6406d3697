"""What a server keeps of one client, and its answers to that client's frames.

A request is a flat map of the parts that the policy reads (``obs`` for a flat observation), as
openpi's clients send it: one observation, to which the session adds the history. The answer has
``actions [act_steps, A]``, the actions to play until the next request. Requests may have further
keys, which the server's metadata announce in ``extensions``:

- ``tick``: a whole number, which the answer repeats.
- ``deadline_ms``: milliseconds after which the client has no use for an answer.
- ``contract_sha``: the ``sha256`` of the bundle for which the client was made.
- ``endpoint``: ``reset`` begins an episode, as RoboArena's servers have it; ``infer`` is a request.
- ``noise``: of one observation, ``[*noise_shape]``, in place of the server's; or of B rows,
  ``[B, *noise_shape]``. Then every part has B rows, with its history and all inputs; nothing is
  remembered, and the answer has whole chunks ``[B, H, A]``, with what the policy hands on to its
  next decision, ``next_<part>``.

vla-eval's clients are known by their ``hello``. They have messages of four entries, and are sent
one action ``[A]`` for each observation.
"""

from __future__ import annotations

import json
import math
import time
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

from trimtab.errors import TrimtabError
from trimtab.observations import FLAT, called, count, tree_map
from trimtab.policies.agent import Agent, ArrayObs
from trimtab.policies.bundle.checked import checked_array, checked_parts, checked_rows
from trimtab.policies.bundle.files import Array, Contract
from trimtab.policies.memory import following, state_parts
from trimtab.policies.serving.codec import FrameError, pack, unpack
from trimtab.policies.serving.protocol import Refusal
from trimtab.policies.serving.worker import PolicyProcess
from trimtab.version import __version__

__all__ = ["EXTENSIONS", "Session", "most_rows", "request_bytes"]

Left = Callable[[], float | None]
"""Says how many seconds are left until a client has no use for an answer; None: any number."""

EXTENSIONS = ("contract_sha", "deadline_ms", "endpoint", "noise", "tick")
"""Keys of a request that are no parts of an observation."""

_HELLO = {"protocol_version": 1, "harness_version": f"trimtab {__version__}", "capabilities": {}}
_MESSAGE = frozenset({"type", "payload", "seq", "timestamp"})
"""Entries of vla-eval's messages."""


def request_bytes(contract: Contract) -> int:
    """Return the bytes of one row's arrays in a request."""
    sizes = {"float32": 4, "uint8": 1}
    types = contract.input_types
    return sum(math.prod(shape) * sizes[types[n]] for n, shape in contract.input_shapes.items())


def most_rows(contract: Contract, most_bytes: int) -> int:
    """Return how many rows a request may have, so that neither it nor its answer is larger."""
    answer = 4 * contract.horizon * contract.action_dim
    return max(1, (most_bytes - 4096) // max(request_bytes(contract), answer, 1))


class Session:
    """One client: its history and other memories, its noise and the way it speaks.

    Args:
        process: what decides.
        contract: of its policy.
        rows: the most rows of a request.
        seed: of the noise; every session begins with the same.
        deterministic: whether the noise is zero where the client sends none.
        inputs: values of inputs that differ from their defaults until the client sends others.
    """

    def __init__(
        self,
        process: PolicyProcess,
        contract: Contract,
        *,
        rows: int,
        seed: int,
        deterministic: bool,
        inputs: Mapping[str, Any] | None = None,
    ) -> None:
        self._process, self._contract, self._most_rows = process, contract, rows
        self._handed_on: Mapping[str, Array] = {}  # by the last decision
        read = contract.inputs
        if state_parts(contract.parts):
            read = replace(read, advance=lambda obs, noise: self._handed_on)
        self._agent = Agent(
            self._decide, 1, read, act_steps=contract.act_steps,
            deterministic=deterministic, inputs=inputs,
        )  # fmt: skip
        self._agent.reset(seeds=[seed])
        self._messages = False  # whether the client is one of vla-eval
        self._seconds = 0.0  # that this decision took in the policy
        self.last_total: float | None = None

    def metadata(self, **limits: int) -> bytes:
        """Return the frame that a client is sent first.

        It is also the answer to the ``hello`` of vla-eval's clients, which they wait for.
        """
        config, contract = self._process.config, self._contract
        return pack(
            {
                "server": f"trimtab {__version__}",
                "contract_sha": config["sha256"],
                "config": json.dumps(config, sort_keys=True),
                "golden": self._process.golden,
                "backend": self._process.backend,
                "horizon": contract.horizon,
                "act_steps": contract.act_steps,
                "control_rate": contract.control_rate,
                "extensions": list(EXTENSIONS),
                **limits,
                **_message("hello", _HELLO, 0),
            }
        )

    def answer(self, frame: bytes, received: float) -> bytes | str | None:
        """Return the answer to a frame, or None where the client waits for none.

        Args:
            frame: as it came.
            received: when, by ``time.monotonic``.

        Raises:
            Refusal: if there are no actions to answer with.
        """
        try:
            request = unpack(frame)
        except FrameError as error:
            raise Refusal("frame", str(error).removeprefix("frame: ")) from error
        if not isinstance(request, Mapping):
            raise Refusal("request", "a request is a map of the parts that the policy reads")
        try:
            if self._messages or (request.keys() == _MESSAGE and _is(request["type"], "hello")):
                return self._answer_message(request)
            return self._answer_request(dict(request), received)
        except TrimtabError as error:
            raise Refusal("request", str(error)) from error

    def _answer_request(self, request: dict[str, Any], received: float) -> bytes | str:
        """Answer a client of openpi or RoboArena, or one of ours."""
        own = {key: request.pop(key) for key in EXTENSIONS if key in request}
        self._check_contract(own.get("contract_sha"))
        tick, left = _tick(own), _seconds_left(own, received)
        if _endpoint(own):
            self._agent.reset()
            return "reset successful"
        noise = own.get("noise")
        rows = getattr(noise, "ndim", 0) == len(self._contract.noise_shape) + 1
        actions = (self._chunks if rows else self._next_actions)(request, noise, left)
        timing = {"infer_ms": 1e3 * (time.monotonic() - received)}
        if self.last_total is not None:
            timing["prev_total_ms"] = 1e3 * self.last_total
        handed_on = {following(n): x for n, x in self._handed_on.items()} if rows else {}
        return pack(
            {
                "actions": actions,
                **handed_on,
                "policy_timing": {"infer_ms": 1e3 * self._seconds},
                "server_timing": timing,
                **tick,
            }
        )

    def _chunks(self, request: dict[str, Any], noise: Any, left: Left) -> Array:
        """Return chunks ``[B, H, A]`` for B rows; nothing of them is remembered."""
        obs = self._rows(request)
        drawn = checked_array(noise, (count(obs), *self._contract.noise_shape), "noise")
        return self._decide(obs, drawn, left)

    def _next_actions(self, request: dict[str, Any], noise: Any, left: Left) -> Array:
        """Return the next actions ``[act_steps, A]`` of this session's episode.

        What was observed is remembered, and the session's noise goes on, also if the answer is late
        or fails: what a client is answered next does not depend on how fast other answers were.
        """
        self._contract.inputs.check_whole_chunks(self._contract.act_steps)
        obs = tree_map(lambda part: part[None], self._row(request))
        sent = None if noise is None else checked_array(noise, self._contract.noise_shape, "noise")
        read, drawn = self._agent.read(obs)
        chunk = self._decide(read, drawn if sent is None else sent[None], left)
        chunk = chunk[:, : self._contract.act_steps]
        self._agent.decided(obs, chunk)
        actions: Array = chunk[0]
        return actions

    def _answer_message(self, request: Mapping[str, Any]) -> bytes | None:
        """Answer a client of vla-eval."""
        if request.keys() != _MESSAGE or not isinstance(request["payload"], Mapping):
            raise Refusal("request", f"a message has the entries {', '.join(sorted(_MESSAGE))}")
        if not isinstance(request["type"], str):
            raise Refusal("request", "the type of a message is text")
        payload, number = request["payload"], request["seq"]
        match request["type"]:
            case "hello":
                if not _is(payload.get("protocol_version"), 1):
                    raise Refusal("request", "this server speaks version 1 of vla-eval's protocol")
                self._messages = True
            case "episode_start":
                self._agent.reset()
            case "episode_end" | "error":
                pass
            case "observation":
                try:
                    action = {"actions": self._one_action(payload)}
                    return pack(_message("action", action, number), text_keys=True)
                except TrimtabError as error:
                    return _refused(Refusal("request", str(error)), number)
                except Refusal as refusal:
                    return _refused(refusal, number)
            case _:
                raise Refusal("request", "a message of this type is unknown")
        return None

    def _one_action(self, payload: Mapping[str, Any]) -> Array:
        obs = self._row(dict(payload))
        action: Array = self._agent.step(tree_map(lambda part: part[None], obs))[0]
        return action

    def _decide(self, obs: ArrayObs, noise: Array, left: Left = lambda: None) -> Array:
        """Return chunks ``[B, H, A]`` as soon as the process has time for this client.

        Raises:
            Refusal: ``late`` if the client has no use for them by then.
        """
        with self._process.turn(left()):
            began = time.monotonic()
            action, self._handed_on = self._process.decide(obs, noise)
            self._seconds = time.monotonic() - began
        if (remaining := left()) is not None and remaining <= 0:
            raise Refusal("late", "the decision took longer than the client could wait")
        return action

    def _row(self, given: dict[str, Any]) -> ArrayObs:
        """Return one observation, checked; what the user chooses goes to the agent.

        Raises:
            TrimtabError: if the policy cannot read it.
        """
        parts = self._contract.parts
        chosen = {name for name, part in parts.items() if part.given is not None}
        inputs = {name: given.pop(name) for name in list(given) if name in chosen}
        if not parts:
            _check_flat(given)
            shape = (self._contract.obs_dim // self._contract.history,)
            obs: ArrayObs = checked_array(given[FLAT], shape, called(FLAT))
        else:
            names = [name for name in parts if name not in chosen]
            found = checked_parts(given, parts, names)
            obs = {
                name: checked_array(found[name], parts[name].shape, called(name), parts[name].dtype)
                for name in names
            }
            if names == [FLAT]:
                obs = obs[FLAT]
        if inputs:
            self._agent.set_inputs(inputs)
        return obs

    def _rows(self, given: dict[str, Any]) -> ArrayObs:
        """Return observations of B rows with their history and all inputs, checked.

        Raises:
            TrimtabError: if the policy cannot read them, or there are too many.
        """
        if not self._contract.parts:
            _check_flat(given)
        checked = checked_rows(given if self._contract.parts else given[FLAT], self._contract)
        if count(checked) > self._most_rows:
            raise TrimtabError(f"observation: has more than {self._most_rows} rows; send fewer")
        return checked if self._contract.parts else checked[FLAT]

    def _check_contract(self, sha: Any) -> None:
        if sha is not None and not _is(sha, self._process.config["sha256"]):
            raise Refusal("contract", "the server has another policy than the client expects")


def _tick(own: Mapping[str, Any]) -> dict[str, int]:
    """Return the tick to repeat, by its key."""
    if "tick" not in own:
        return {}
    if type(own["tick"]) is not int:
        raise TrimtabError("tick: must be a whole number")
    return {"tick": own["tick"]}


def _endpoint(own: Mapping[str, Any]) -> bool:
    """Return whether a request begins an episode instead of asking for actions."""
    endpoint = own.get("endpoint", "infer")
    if not _is(endpoint, "infer") and not _is(endpoint, "reset"):
        raise TrimtabError("endpoint: must be infer or reset")
    return _is(endpoint, "reset")


def _is(value: Any, wanted: str | int) -> bool:
    """Return whether a value of any type, also an array, is this text or number."""
    return type(value) is type(wanted) and bool(value == wanted)


def _seconds_left(own: Mapping[str, Any], received: float) -> Left:
    """Return what says how long the client of a request waits."""
    if "deadline_ms" not in own:
        return lambda: None
    given = own["deadline_ms"]
    if type(given) not in (int, float) or not 0 < given < 1e9:
        raise TrimtabError("deadline_ms: must be a number of milliseconds above 0")
    return lambda: received + given / 1e3 - time.monotonic()


def _check_flat(given: Mapping[str, Any]) -> None:
    if given.keys() != {FLAT}:
        others = ", ".join(sorted(given))[:200] or "nothing"
        raise TrimtabError(f"observation: send it as {FLAT} alone, got {others}")


def _message(kind: str, payload: Mapping[str, Any], number: Any) -> dict[str, Any]:
    return {"type": kind, "payload": payload, "seq": number, "timestamp": time.time()}


def _refused(refusal: Refusal, number: Any) -> bytes:
    return pack(_message("error", {"error": refusal.text}, number))
