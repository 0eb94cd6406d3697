"""A log of every control tick, from which the whole run can be played again.

The file begins with a line that names the format. Records follow, each with a head (kind, number of
the record, tick, length, checksums of the body and of the head) and a body: first the settings as
JSON, then resets as JSON and ticks as bytes. Checksums find every changed byte, also one that no
decision depends on.

Each record is one write to the system, so that what was written survives the end of the process. It
is therefore no file that is written beside its place and then renamed.
"""

from __future__ import annotations

import json
import struct
import time
import zlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any

import numpy as np

from trimtab.errors import TrimtabError
from trimtab.files import read_whole
from trimtab.observations import FLAT
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.files import Contract
from trimtab.policies.bundle.workspace import Workspace
from trimtab.policies.robot.inference import Inference
from trimtab.policies.robot.plan import Array

__all__ = ["Log", "Played", "Repeated", "Reset", "TickLog", "described", "read_log"]

_MAGIC = b"trimtab-log 1\n"
_HEAD = struct.Struct("<BQqII")  # kind, number, tick, length, checksum of the body
_SUM = struct.Struct("<I")  # checksum of the head
_TICK = struct.Struct("<BBdd")  # flags, events, time, reward
_SETTINGS, _RESET, _PLAYED = range(3)
_OBSERVED, _REWARDED, _RAISED, _SCORED, _OUTSIDE = 1, 2, 4, 8, 16
_NOTHING, _ANSWER, _FAILURE = range(3)


def described(thing: Any) -> dict[str, Any]:
    """Return a mode, a fallback or limits as JSON values: its class's name and its settings."""
    settings = {one.name: _plain(getattr(thing, one.name)) for one in fields(thing) if one.init}
    return {"name": type(thing).__name__, **settings}


def _plain(value: Any) -> Any:
    if isinstance(value, Workspace):
        return value.to_json()
    return None if value is None else np.asarray(value).tolist()


class TickLog:
    """Writes the log of one robot.

    A disk that fails stops the log and not the robot.

    Attributes:
        lost: records that could not be written; after the first one, none is.

    Args:
        path: a new file.
        contract: of the bundle.
        settings: JSON values with which the run can be played again.

    Raises:
        TrimtabError: if the file is there already or cannot be made.
    """

    def __init__(self, path: str | Path, contract: Contract, settings: Mapping[str, Any]) -> None:
        self._contract = contract
        try:
            self._file = open(path, "xb", buffering=0)  # noqa: SIM115
        except FileExistsError as error:
            raise TrimtabError(f"log {path}: is there already; name a new file") from error
        except OSError as error:
            raise TrimtabError(f"log {path}: cannot be made ({error.strerror})") from error
        self._number = self.lost = 0
        self.events = _Events()
        try:
            self._file.write(_MAGIC)
        except OSError as error:
            raise TrimtabError(f"log {path}: cannot be written ({error.strerror})") from error
        self._write(_SETTINGS, -1, json.dumps(settings).encode())

    def watch(self, inference: Inference) -> Inference:
        """Return the same inference; what it does in a tick is noted."""
        return _Watched(inference, self.events)

    def reset(self, seed: int | None, action: Array | None, inputs: Mapping[str, Any]) -> None:
        """Note a reset."""
        chosen = {name: np.asarray(value).tolist() for name, value in inputs.items()}
        force = None if action is None else action.tolist()
        told = {"seed": None if seed is None else int(seed), "action": force, "inputs": chosen}
        self._write(_RESET, -1, json.dumps(told).encode())

    def tick(
        self,
        tick: int,
        obs: ArrayObs | None,
        reward: float | None,
        action: Array | None,
        score: float | None = None,
        outside: bool = False,
    ) -> None:
        """Note a tick.

        Args:
            tick: its number.
            obs: the observation of one row, checked; None if there was none.
            reward: the one that was reported before it, or None.
            action: what was played ``[A]``; None if an error was raised instead.
            score: how unfamiliar it was; None if nothing scores it.
            outside: whether the robot has left its workspace.
        """
        flags = _OBSERVED * (obs is not None) + _REWARDED * (reward is not None)
        flags += _RAISED * (action is None) + _SCORED * (score is not None) + _OUTSIDE * outside
        body = [_TICK.pack(flags, self.events.taken(), time.monotonic(), reward or 0.0)]
        if obs is not None:
            parts = obs if isinstance(obs, Mapping) else {FLAT: obs}
            body += [parts[name].tobytes() for name in self._contract.observed]
        if action is not None:
            body.append(action.tobytes())
        if score is not None:
            body.append(np.float64(score).tobytes())
        self._write(_PLAYED, tick, b"".join(body))

    def close(self) -> None:
        """Close the file."""
        self._file.close()

    def _write(self, kind: int, tick: int, body: bytes) -> None:
        head = _HEAD.pack(kind, self._number, tick, len(body), zlib.crc32(body))
        record = head + _SUM.pack(zlib.crc32(head)) + body
        try:
            written = 0 if self.lost else self._file.write(record)
        except (OSError, ValueError):  # a disk that fails, or a closed log
            written = 0
        self.lost += written != len(record)  # a disk that is full may take a part
        self._number += 1


class _Events:
    """What an inference did in a tick: before, at and after a request, two bits each."""

    def __init__(self, value: int = 0) -> None:
        self.value, self._place = value, 0

    def note(self, event: int, *, request: bool = False) -> None:
        self._place = max(self._place, int(request))
        self.value |= event << 2 * self._place
        self._place += request

    def next(self, *, request: bool = False) -> int:
        """Return what was noted at this place."""
        self._place = max(self._place, int(request))
        found = self.value >> 2 * self._place & 3
        self._place += request
        return found

    def taken(self) -> int:
        """Return all of a tick as one number, and begin the next tick."""
        value = self.value
        self.begin(0)
        return value

    def begin(self, value: int) -> None:
        self.value, self._place = value, 0


class _Watched(Inference):
    """An inference of which is noted what it does."""

    def __init__(self, inference: Inference, events: _Events) -> None:
        self._inference, self._events = inference, events

    @property
    def restarts(self) -> int:
        return self._inference.restarts

    def begin(self, read: ArrayObs, noise: Array) -> None:
        try:
            self._inference.begin(read, noise)
        except BaseException:  # Ctrl+C too
            self._events.note(_FAILURE, request=True)
            raise
        self._events.note(_NOTHING, request=True)

    def poll(self) -> Array | None:
        try:
            answer = self._inference.poll()
        except TrimtabError:
            self._events.note(_FAILURE)
            raise
        self._events.note(_NOTHING if answer is None else _ANSWER)
        return answer

    def close(self) -> None:
        self._inference.close()


class Repeated(Inference):
    """Answers when the inference of a log did, and fails when it did.

    Args:
        inference: computes at once.
    """

    def __init__(self, inference: Inference) -> None:
        self._inference = inference
        self.events = _Events()

    def begin(self, read: ArrayObs, noise: Array) -> None:
        """Compute the answer, or fail."""
        if self.events.next(request=True) == _FAILURE:
            raise TrimtabError("the request failed when the log was written")
        self._inference.begin(read, noise)

    def poll(self) -> Array | None:
        """Return the answer if it came at this place, or fail."""
        event = self.events.next()
        if event == _FAILURE:
            self._inference.poll()
            raise TrimtabError("the answer was a failure when the log was written")
        return self._inference.poll() if event == _ANSWER else None


@dataclass(frozen=True)
class Reset:
    """A reset in a log: the arguments of ``PolicyRunner.reset``."""

    seed: int | None
    action: list[float] | None
    inputs: Mapping[str, Any]


@dataclass(frozen=True)
class Played:
    """A tick in a log.

    Attributes:
        tick: its number since the reset.
        time: when it was played, in seconds of the robot's monotonic clock.
        obs: what was observed, or None.
        reward: the one that was reported, or None.
        events: what the inference did, for ``Repeated``.
        action: what was played ``[A]``, or None if an error was raised.
        score: how unfamiliar the tick was, or None if nothing scored it.
        outside: whether the robot had left its workspace.
    """

    tick: int
    time: float
    obs: ArrayObs | None
    reward: float | None
    events: int
    action: Array | None
    score: float | None = None
    outside: bool = False


@dataclass(frozen=True)
class Log:
    """A log that was read, each of its bytes checked.

    Attributes:
        settings: what the run was made with.
        records: the bodies of resets and ticks, with their numbers of ticks.
        cut: whether the last record is incomplete, as where the process was killed.
    """

    where: str
    settings: Mapping[str, Any]
    records: tuple[tuple[int, int, bytes], ...]
    cut: bool

    def steps(self, contract: Contract) -> Iterator[Reset | Played]:
        """Yield the resets and ticks in their order.

        Raises:
            TrimtabError: if one does not fit the contract.
        """
        for kind, tick, body in self.records:
            try:
                if kind == _RESET:
                    told = json.loads(body)
                    yield Reset(told["seed"], told["action"], dict(told["inputs"]))
                else:
                    yield _played(tick, body, contract)
            except (ValueError, KeyError, TypeError, struct.error) as error:
                raise TrimtabError(f"{self.where}: tick {tick} does not fit the bundle") from error


def _played(tick: int, body: bytes, contract: Contract) -> Played:
    flags, events, moment, reward = _TICK.unpack_from(body)
    at = _TICK.size

    def taken(shape: tuple[int, ...], dtype: str) -> Any:
        nonlocal at
        array = np.frombuffer(body, dtype, int(np.prod(shape)), at).reshape(shape)
        at += array.nbytes
        return array

    obs: Any = None
    if flags & _OBSERVED:
        obs = {name: taken(*kind) for name, kind in contract.observed.items()}
        if list(obs) == [FLAT]:
            obs = obs[FLAT]
    action = None if flags & _RAISED else taken((contract.action_dim,), "float32")
    score = float(taken((1,), "float64")[0]) if flags & _SCORED else None
    if at != len(body):
        raise ValueError("bytes are left over")
    earned = reward if flags & _REWARDED else None
    return Played(tick, moment, obs, earned, events, action, score, bool(flags & _OUTSIDE))


def read_log(path: str | Path) -> Log:
    """Read a log and check every byte of it.

    Raises:
        TrimtabError: if it is no log, or a byte was changed: the tick is named.
    """
    where = f"log {path}"
    data = read_whole(path, where)
    if not data.startswith(_MAGIC):
        raise TrimtabError(f"{where}: is no log of Trimtab, or its first line was changed")
    records: list[tuple[int, int, bytes]] = []
    at, last, cut = len(_MAGIC), "its settings", False
    while at < len(data):
        body_at = at + _HEAD.size + _SUM.size
        if body_at > len(data):
            cut = True
            break
        head = data[at : at + _HEAD.size]
        kind, number, tick, length, checksum = _HEAD.unpack(head)
        (known,) = _SUM.unpack_from(data, at + _HEAD.size)
        if zlib.crc32(head) != known or number != len(records) or kind > _PLAYED:
            what = last if not records else f"the record after {last}"
            raise TrimtabError(f"{where}: {what} was changed, or records are missing there")
        what = ("its settings", "a reset", f"tick {tick}")[kind]
        body = data[body_at : body_at + length]
        if len(body) < length:
            cut = True
            break
        if zlib.crc32(body) != checksum:
            place = f" after {last}" if kind == _RESET and records else ""
            raise TrimtabError(f"{where}: {what}{place} was changed")
        records.append((kind, tick, body))
        last, at = what, body_at + length
    if not records or records[0][0] != _SETTINGS:
        raise TrimtabError(f"{where}: has no settings; it was cut off at its beginning")
    try:
        settings = json.loads(records[0][2])
    except ValueError as error:
        raise TrimtabError(f"{where}: its settings are not readable JSON") from error
    if not isinstance(settings, dict):
        raise TrimtabError(f"{where}: its settings are no mapping")
    return Log(where, settings, tuple(records[1:]), cut)
