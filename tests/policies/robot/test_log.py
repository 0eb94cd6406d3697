"""The log of every tick: played again to the same bits, and every changed byte is found."""

from __future__ import annotations

import functools
import json
import re
import struct
import zlib
from collections.abc import Callable, Iterable
from itertools import chain, repeat
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.cli.main import main
from trimtab.errors import TrimtabError
from trimtab.policies import runtime
from trimtab.policies.agent import ArrayObs
from trimtab.policies.bundle.onnx_policy import read_policy
from trimtab.policies.robot import log as logs
from trimtab.policies.robot.inference import InLine
from trimtab.policies.robot.log import TickLog, read_log
from trimtab.policies.robot.plan import Array
from trimtab.policies.robot.replay import logged_settings, replay
from trimtab.policies.runtime import (
    NO_LIMITS,
    Blended,
    Damp,
    Hold,
    Limits,
    Mode,
    PlayOut,
    PolicyRunner,
    SafeAction,
    TemporalEnsemble,
)

pytestmark = pytest.mark.bits

Late = load_module(Path(__file__).with_name("numbered.py")).Late
load_policy = functools.partial(runtime.load_policy, limits=NO_LIMITS)
BundleOf = Callable[[str], Path]
SAFE = (0.5, 0.25)


def observations(count: int, seed: int = 0) -> Array:
    return np.random.default_rng(seed).normal(size=(count, 6)).astype(np.float32)


SETTINGS: dict[str, dict[str, Any]] = {
    "plain": {},
    "ensemble": {"mode": TemporalEnsemble(m=0.1), "fallback": Hold(patience=1)},
    "blend": {
        "mode": Blended(2, ramp=2),
        "fallback": Damp(safe=SAFE, keep=0.5),
        "limits": Limits(velocity=(3.0, 2.0), acceleration=40.0, high=(0.6, 2.0)),
    },
}


@pytest.mark.parametrize("name", SETTINGS)
@pytest.mark.parametrize("deterministic", [True, False])
def test_a_log_is_played_again_to_the_same_bits(
    name: str, deterministic: bool, bundle_of: BundleOf, tmp_path: Path
) -> None:
    settings = SETTINGS[name]
    runner = load_policy(
        bundle_of("flow"), seed=3, deterministic=deterministic, log=tmp_path / "log", **settings
    )
    for episode, seed in enumerate((None, 11, None)):
        runner.reset(seed, action=SAFE if episode or "limits" in settings else None)
        for tick, obs in enumerate(observations(25, episode)):
            if settings.get("fallback") and tick in (4, 5, 6, 12):
                runner.step([np.nan] * 6 if tick == 12 else None)
            elif tick not in (8, 9):  # left out
                runner.step(obs, 0.5 if tick % 2 else None, tick=tick)
    with pytest.raises(TrimtabError, match="NaN"):
        runner.step([np.nan] * 6) if not settings else runner.step(obs, np.nan)
    runner.close()
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal, found.worst, found.differs) == (69, True, 0.0, "")
    assert found.passed and found.same_processor and not found.cut


class Failing(Late):  # type: ignore[misc, valid-type]
    """Fails at each third request, in turn as it is sent and as it is answered."""

    def begin(self, read: ArrayObs, noise: Array) -> None:
        super().begin(read, noise)
        if self.begun % 6 == 3:
            self._answer = None
            raise TrimtabError("the pipe is broken")

    def poll(self) -> Array | None:
        answer: Array | None = super().poll()
        if answer is not None and self.begun % 6 == 0:
            raise TrimtabError("the process ended")
        return answer


def failing(
    bundle: Path, path: Path, delays: Iterable[int], *parts: Any, seed: int = 5
) -> PolicyRunner:
    """Return a policy whose answers come late and fail at times; parts: mode and fallback."""
    files, late = read_policy(bundle), Failing(delays)
    ticks = TickLog(path, files.contract, logged_settings(bundle, files, False, *parts, None))
    mode, fallback = parts
    runner = PolicyRunner(
        files.contract, files.model, "here", seed=seed, deterministic=False,
        mode=mode, fallback=fallback, inference=late, log=ticks,
    )  # fmt: skip
    late.infer = runner.infer
    return runner


@pytest.mark.parametrize("mode", [None, TemporalEnsemble(), Blended(2, share=0.5)])
def test_late_and_failed_answers_are_played_again_when_they_came(
    mode: Mode | None, bundle_of: BundleOf, tmp_path: Path
) -> None:
    delays = chain([0, 2, 5], repeat(1))
    runner = failing(bundle_of("flow"), tmp_path / "log", delays, mode, PlayOut(patience=2))
    for seed in (1, 2):
        runner.reset(seed, action=SAFE)
        for tick, obs in enumerate(observations(33, seed)):
            runner.step(None if tick % 10 == 7 else obs)
    assert runner.counts["failed"] > 1 and runner.counts["empty"] > 0
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal) == (66, True)


def test_an_error_that_was_raised_is_raised_again(bundle_of: BundleOf, tmp_path: Path) -> None:
    runner = failing(bundle_of("flow"), tmp_path / "log", repeat(0), None, None)
    raised = 0
    for obs in observations(40):
        try:
            runner.step(obs)
        except TrimtabError:
            raised += 1
    assert raised > 2
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal) == (40, True)
    flags = [body[0] for kind, _, body in read_log(tmp_path / "log").records if kind == 2]
    place = flags.index(next(flag for flag in flags if flag & logs._RAISED))
    forge(
        tmp_path / "log",
        place + 2,
        lambda body: bytes([body[0] & ~logs._RAISED]) + body[1:] + bytes(8),
    )
    found = replay(tmp_path / "log")
    assert found.worst == np.inf
    told = "the request failed when the log was written"
    assert found.differs == f"tick {place} after reset 1 ({told})"


def test_a_decision_that_was_interrupted_is_played_again(
    bundle_of: BundleOf, tmp_path: Path
) -> None:
    folder, asked = bundle_of("flow"), iter(range(99))
    policy, files = load_policy(folder), read_policy(folder)
    settings = logged_settings(folder, files, False, None, None, None)
    ticks = TickLog(tmp_path / "log", files.contract, settings)

    def infer(read: ArrayObs, noise: Array) -> Array:
        if next(asked) in (2, 5):
            raise KeyboardInterrupt
        return policy.infer(read, noise)

    runner = PolicyRunner(
        files.contract, files.model, "here", deterministic=False, inference=InLine(infer), log=ticks
    )
    interrupted = 0
    for tick, obs in enumerate(observations(40)):
        try:
            runner.step(obs)
        except KeyboardInterrupt:
            interrupted += 1
            if tick % 2:
                runner.reset()
    assert interrupted == 2
    found = replay(tmp_path / "log")
    assert (found.ticks, found.equal) == (40, True)


@pytest.fixture
def small(bundle_of: BundleOf, tmp_path: Path) -> Path:
    """A log of two episodes: ticks 0 to 3, and 0, 2 and 3."""
    runner = load_policy(bundle_of("flow"), fallback=SafeAction(safe=SAFE), log=tmp_path / "log")
    for tick, obs in enumerate(observations(4)):
        runner.step(obs, tick=tick)
    runner.reset(4)
    for tick in (0, 2, 3):
        runner.step(None if tick == 2 else np.zeros(6), tick=tick)
    runner.close()
    return tmp_path / "log"


def frames(data: bytes) -> list[tuple[int, int]]:
    """Where each record begins and ends."""
    found, at = [], len(logs._MAGIC)
    while at < len(data):
        length = logs._HEAD.unpack_from(data, at)[3]
        end = at + logs._HEAD.size + logs._SUM.size + length
        found.append((at, end))
        at = end
    return found


def test_every_changed_byte_is_named_with_its_tick(small: Path) -> None:
    data = small.read_bytes()
    names = ["its settings", "a reset", *("tick 0", "tick 1", "tick 2", "tick 3")]
    names += ["a reset after tick 3", "tick 0", "tick 2", "tick 3"]
    after = ["its settings", "its settings", "a reset", "tick 0", "tick 1", "tick 2"]
    after += ["tick 3", "a reset", "tick 0", "tick 2"]
    records = frames(data)
    assert len(records) == len(names)
    for place, (begin, end) in enumerate(records):
        body = begin + logs._HEAD.size + logs._SUM.size
        for at in range(begin, end):
            changed = bytearray(data)
            changed[at] ^= 1 << at % 8
            small.write_bytes(changed)
            with pytest.raises(TrimtabError) as caught:
                read_log(small)
            expected = names[place] if at >= body else after[place]
            assert f": {expected}" in str(caught.value).replace("the record after ", ""), at
            assert "was changed" in str(caught.value)
    for at in range(len(logs._MAGIC)):
        small.write_bytes(data[:at] + b"?" + data[at + 1 :])
        with pytest.raises(TrimtabError, match="is no log of Trimtab"):
            read_log(small)


def test_a_record_that_is_missing_or_twice_is_found(small: Path) -> None:
    data = small.read_bytes()
    (begin, end) = frames(data)[3]
    for forged in (data[:begin] + data[end:], data[:end] + data[begin:]):
        small.write_bytes(forged)
        with pytest.raises(TrimtabError, match="records are missing there"):
            read_log(small)


def test_a_log_that_was_cut_off_is_played_as_far_as_it_goes(small: Path) -> None:
    data = small.read_bytes()
    begin, end = frames(data)[-1]
    for size in range(begin + 1, end):
        small.write_bytes(data[:size])
        assert read_log(small).cut
    found = replay(small)
    assert (found.ticks, found.cut, found.passed) == (6, True, True)
    small.write_bytes(data[: frames(data)[2][0]])  # the settings and a reset
    with pytest.raises(TrimtabError, match="has no tick"):
        replay(small)
    small.write_bytes(data[: len(logs._MAGIC) + 9])
    with pytest.raises(TrimtabError, match="cut off at its beginning"):
        read_log(small)


def forge(path: Path, place: int, change: Callable[[bytes], bytes]) -> None:
    """Change the body of a record, and make its checksums right again."""
    data = path.read_bytes()
    begin, end = frames(data)[place]
    kind, number, tick, _, _ = logs._HEAD.unpack_from(data, begin)
    body = change(data[begin + logs._HEAD.size + logs._SUM.size : end])
    head = logs._HEAD.pack(kind, number, tick, len(body), zlib.crc32(body))
    path.write_bytes(data[:begin] + head + struct.pack("<I", zlib.crc32(head)) + body + data[end:])


def of_another_processor(body: bytes) -> bytes:
    return json.dumps({**json.loads(body), "processor": "another"}).encode()


def last_number(step: float) -> Callable[[bytes], bytes]:
    def change(body: bytes) -> bytes:
        (number,) = np.frombuffer(body[-4:], np.float32)
        return body[:-4] + np.float32(number + np.float32(step)).tobytes()

    return change


def test_another_action_is_named_and_allowed_as_far_as_is_promised(small: Path) -> None:
    forge(small, 5, last_number(3e-5))
    found = replay(small)
    assert found.differs == "tick 3 after reset 1" and 2e-5 < found.worst < 4e-5
    assert found.same_processor and not found.passed
    forge(small, 0, of_another_processor)
    found = replay(small)
    assert not found.same_processor and found.passed
    forge(small, 5, last_number(3e-4))
    assert not replay(small).passed


def test_a_log_of_another_bundle_is_refused(small: Path, bundle_of: BundleOf) -> None:
    given, other = bundle_of("flow"), bundle_of("gaussian")
    ours, theirs = (read_policy(folder).sha256[:10] for folder in (given, other))
    told = f"with the bundle {ours} at {given}; at {other} is the bundle {theirs}: name a copy"
    with pytest.raises(TrimtabError, match=re.escape(told)):
        replay(small, other)
    gone = bundle_of("flow").parent / "moved"
    bundle_of("flow").rename(gone)
    try:
        with pytest.raises(TrimtabError, match="is not there; give bundle="):
            replay(small)
        told = f"log {small}: its bundle nowhere is not there; give bundle="
        with pytest.raises(TrimtabError, match=re.escape(told)):
            replay(small, "nowhere")
        assert replay(small, gone).equal
    finally:
        gone.rename(gone.with_name("flow"))
    for change, word in (
        (lambda body: json.dumps({**json.loads(body), "bundle": 3}).encode(), "names no bundle"),
        (lambda body: json.dumps({**json.loads(body), "mode": {"name": "X"}}).encode(), "'X'"),
        (lambda body: json.dumps({**json.loads(body), "mode": 3}).encode(), "a mode"),
        (lambda body: b"[]", "no mapping"),
        (lambda body: b"{", "not readable JSON"),
    ):
        data = small.read_bytes()
        forge(small, 0, change)
        with pytest.raises(TrimtabError, match=word):
            replay(small)
        small.write_bytes(data)
    forge(small, 4, lambda body: body + b"x")
    with pytest.raises(TrimtabError, match="tick 2 does not fit"):
        replay(small)


def test_a_log_that_cannot_be_written_does_not_stop_the_robot(
    bundle_of: BundleOf, tmp_path: Path
) -> None:
    runner, twin = (
        load_policy(bundle_of("flow"), log=tmp_path / "log"),
        load_policy(bundle_of("flow")),
    )
    for tick, obs in enumerate(observations(6)):
        if tick == 2:
            runner._log.close()  # type: ignore[union-attr]
        assert np.array_equal(runner.step(obs), twin.step(obs))
    assert runner.counts["unlogged"] == 4
    assert replay(tmp_path / "log").ticks == 2


def test_a_log_replaces_no_file(small: Path, bundle_of: BundleOf) -> None:
    data = small.read_bytes()
    with pytest.raises(TrimtabError, match="is there already"):
        load_policy(bundle_of("flow"), log=small)
    assert small.read_bytes() == data
    with pytest.raises(TrimtabError, match="interval=9"):
        load_policy(bundle_of("flow"), log=small.with_name("new"), mode=TemporalEnsemble(9))
    assert not small.with_name("new").exists()


def test_the_command(small: Path, capsys: pytest.CaptureFixture[str]) -> None:
    def answer(*words: str) -> tuple[Any, str, str]:
        with pytest.raises(SystemExit) as ended:
            main(["replay", *words])
        shown = capsys.readouterr()
        return ended.value.code, shown.out, shown.err

    code, out, err = answer(f"log={small}")
    assert (code, err) == (0, "")
    assert out.startswith("agrees: 7 ticks, every action has the same bits\n")
    code, out, err = answer(f"log={small}", "format=json")
    assert code == 0 and json.loads(out)["passed"] is True
    forge(small, 5, last_number(0.25))
    code, out, err = answer(f"log={small}")
    assert code == 1 and "tick 3 after reset 1 is the first that differs, by 0.25" in out
    assert "opening the policy is reset 1, the program's first is 2" in out
    data = bytearray(small.read_bytes())
    data[frames(bytes(data))[4][1] - 1] ^= 1
    small.write_bytes(data)
    code, out, err = answer(f"log={small}")
    assert (code, out) == (2, "") and err.count("\n") == 1 and "tick 2 was changed" in err
    assert answer("log=/nowhere")[0] == 2
