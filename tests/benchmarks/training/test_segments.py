"""A ring's rows in a checkpoint: only what is new is written, and nothing is lost on the way."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from loading import load_module

from trimtab.benchmarks.training import segments
from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.datasets.sources.replay import ReplayBuffer
from trimtab.files import read_json, sha256_json
from trimtab.types import BatchSpec, RowLog, TrimtabError

on_disk = load_module(Path(__file__).with_name("on_disk.py"))
loaded, files = on_disk.loaded, on_disk.files

TYPES = {"wide": ("<f4", (3,)), "plain": ("<f8", ()), "byte": ("u1", (2, 2)), "flag": ("?", ())}
ROW = 12 + 8 + 4 + 1
"""Bytes of a row of these."""


class Ring:
    """A ring of rows whose values follow from their number."""

    def __init__(self, rows: int) -> None:
        self.rows, self.written = rows, 0
        self.arrays = {n: np.zeros((rows, *s), dtype=t) for n, (t, s) in TYPES.items()}

    def write(self, count: int) -> Ring:
        for _ in range(count):
            for name, array in self.arrays.items():
                array[self.written % self.rows] = value(name, self.written)
            self.written += 1
        return self

    def log(self, settled: int | None = None) -> RowLog:
        return RowLog(
            self.arrays, self.rows, self.written, self.written if settled is None else settled
        )

    def take(self, log: RowLog) -> Ring:
        for name, array in self.arrays.items():
            array[: log.size] = log[name]
        self.written = log.written
        return self


def value(name: str, number: int) -> Any:
    dtype, shape = TYPES[name]
    drawn = np.random.default_rng(number).integers(0, 200, size=shape)
    return np.asarray(drawn).astype(dtype)


def check(log: RowLog, ring: Ring) -> None:
    """Check that a loaded log is what the ring holds, by its numbers and by its memory."""
    assert (log.rows, log.written) == (ring.rows, ring.written)
    for name, (dtype, _) in TYPES.items():
        assert log[name].dtype == np.dtype(dtype)
        np.testing.assert_array_equal(log[name], ring.log()[name])
        part = log.part(log.oldest, log.written)[name]
        for number, found in zip(range(log.oldest, log.written), part, strict=True):
            np.testing.assert_array_equal(found, value(name, number))


@pytest.fixture
def small(monkeypatch: pytest.MonkeyPatch) -> None:
    """Spans of 4, 12 and 36 rows."""
    monkeypatch.setattr(segments, "SMALLEST", 4 * ROW)
    monkeypatch.setattr(segments, "LARGEST", 36 * ROW)
    monkeypatch.setattr(segments, "FACTOR", 3)


@pytest.mark.parametrize("rows", [1, 15, 50, 200])
@pytest.mark.parametrize("seed", range(2))
def test_rings_come_back_and_go_on(tmp_path: Path, small: None, rows: int, seed: int) -> None:
    """Two logs in one state, one of them with rows that still change, stopped now and then."""
    dice = random.Random(f"{rows} {seed}")
    one, two, checkpoints = Ring(rows), Ring(2 * rows), Checkpoints(tmp_path)
    for step in range(20):
        one.write(dice.choice([0, 1, 5, 17]))
        two.write(dice.choice([0, 0, 3]))
        settled = max(0, two.written - dice.choice([0, 2, 9]))
        logs = {"one": one.log(), "deep": [{"two": two.log(settled)}]}
        checkpoints.save(step, {"step": step, **logs})
        state = loaded(tmp_path)
        assert state["step"] == step
        check(state["one"], one)
        check(state["deep"][0]["two"], two)
        if dice.random() < 0.3:
            checkpoints = Checkpoints(tmp_path)
            state = checkpoints.load()
            one, two = Ring(rows).take(state["one"]), Ring(2 * rows).take(state["deep"][0]["two"])
        assert len([p for p in tmp_path.iterdir() if p.name.startswith("step-")]) == 1
        assert not list(tmp_path.rglob("*.tmp"))


@pytest.mark.parametrize("rows", [48, 500])
def test_files_follow_from_the_rows_and_not_from_when_they_were_saved(
    tmp_path: Path, small: None, rows: int
) -> None:
    def saved(folder: Path, often: int, loads: bool) -> dict[str, bytes]:
        ring, checkpoints = Ring(rows), Checkpoints(folder)
        for step in range(120):
            ring.write(1)
            if step % often == 0 or step == 119:
                checkpoints.save(step, {"ring": ring.log()})
                if loads:
                    checkpoints = Checkpoints(folder)
                    ring.take(checkpoints.load()["ring"])
        return files(folder)

    usual = saved(tmp_path / "usual", 20, loads=False)
    assert any(name.startswith("rows/") for name in usual)
    assert saved(tmp_path / "often", 5, loads=True) == usual
    assert saved(tmp_path / "odd", 7, loads=True) == usual


def test_a_checkpoint_writes_what_is_new(tmp_path: Path) -> None:
    """Bytes on disk that were not there before, with the sizes of every run."""
    row, new = 4096, 100
    array = np.zeros((3072, row // 4), np.float32)
    generator, checkpoints = np.random.default_rng(0), Checkpoints(tmp_path)
    known: set[tuple[str, int, int]] = set()
    cost, most_files = [], 0
    for step in range(1, 76):  # two and a half times round
        places = np.arange((step - 1) * new, step * new) % len(array)
        array[places] = generator.random((new, row // 4), np.float32)
        checkpoints.save(step, {"ring": RowLog({"a": array}, len(array), step * new, step * new)})
        there = [(path, path.stat()) for path in tmp_path.rglob("*") if path.is_file()]
        now = {(path.name, stat.st_ino, stat.st_mtime_ns): stat.st_size for path, stat in there}
        cost.append(sum(size for key, size in now.items() if key not in known))
        known, most_files = set(now), max(most_files, len(now))
    fixed, whole = segments.SMALLEST + 20_000, array.nbytes
    assert max(cost) < 0.3 * whole  # a long span of many short ones, at most
    assert np.median(cost) < 2 * new * row + fixed
    assert sum(cost) < 75 * (3 * new * row + fixed)  # once for each size of span
    assert np.mean(cost) < whole / 8
    assert most_files < 60
    state = loaded(tmp_path)
    np.testing.assert_array_equal(state["ring"]["a"], array)
    kept = sum(path.stat().st_size for path in tmp_path.rglob("*") if path.is_file())
    assert kept < whole * (1 + 1 / segments.LEAST_SPANS) + fixed


@pytest.fixture
def saved(tmp_path: Path, small: None) -> Iterator[tuple[Path, Ring]]:
    """A checkpoint with segments of every size."""
    ring = Ring(200).write(95)
    Checkpoints(tmp_path / "run").save(1, {"ring": ring.log()})
    assert len(list((tmp_path / "run" / "rows").iterdir())) == 2 + 1 + 2
    yield tmp_path / "run", ring


def test_a_damaged_cut_or_missing_segment_is_one_line(saved: tuple[Path, Ring]) -> None:
    folder, _ = saved
    generator = np.random.default_rng(0)
    for path in sorted((folder / "rows").iterdir()):
        data = path.read_bytes()
        damaged = [data[:-1], data[:5], b"", data + b"\0"]
        for place in generator.integers(len(data), size=20):
            flipped = bytearray(data)
            flipped[place] ^= 1 << int(generator.integers(8))
            damaged.append(bytes(flipped))
        for wrong in damaged:
            path.write_bytes(wrong)
            for load in (Checkpoints(folder).load, lambda: load_checkpoint(folder)):
                with pytest.raises(TrimtabError, match=rf"checkpoint: .*{path.name} was changed"):
                    load()
        path.unlink()
        with pytest.raises(TrimtabError, match=r"cannot be read .*move") as error:
            Checkpoints(folder).load()
        assert path.name in str(error.value) and "\n" not in str(error.value)
        path.write_bytes(data)
    assert loaded(folder)["ring"].written == 95


def test_what_a_checkpoint_says_of_its_segments_is_checked(saved: tuple[Path, Ring]) -> None:
    folder, _ = saved
    state = next(folder.glob("step-*")) / "state.json"
    good = read_json(state, "state")
    for change in ({"written": 94}, {"rows": 100}, {"segments": []}):
        document = json.loads(json.dumps(good))
        document["logs"]["/ring"] |= change
        state.write_text(json.dumps(document))
        with pytest.raises(TrimtabError, match="was changed since it was written"):
            load_checkpoint(folder)
    del good["logs"]
    state.write_text(json.dumps(good))
    with pytest.raises(TrimtabError, match="was changed since it was written"):
        load_checkpoint(folder)


def test_a_left_over_segment_is_not_taken_and_goes(saved: tuple[Path, Ring]) -> None:
    folder, ring = saved
    expected = files(folder)
    wrong = folder / "rows" / "000000000084-000000000096-0123456789abcdef.safetensors"
    wrong.write_bytes(b"half a segment")
    checkpoints = Checkpoints(folder)
    check(checkpoints.load()["ring"], ring)
    assert files(folder) == expected
    wrong.write_bytes(b"half a segment")
    checkpoints.save(2, {"ring": ring.write(1).log()})
    assert not wrong.exists()
    check(loaded(folder)["ring"], ring)


def test_a_segment_that_vanished_is_written_again(saved: tuple[Path, Ring]) -> None:
    folder, ring = saved
    checkpoints = Checkpoints(folder)
    checkpoints.load()
    paths = sorted((folder / "rows").iterdir())
    paths[0].unlink()
    paths[1].write_bytes(b"cut")
    checkpoints.save(2, {"ring": ring.log()})
    check(loaded(folder)["ring"], ring)


def test_rows_that_another_run_wrote_are_never_taken(saved: tuple[Path, Ring]) -> None:
    """Who has not loaded a checkpoint writes all rows anew."""
    folder, _ = saved
    ring = Ring(200).write(95)
    ring.arrays["plain"] += 1000
    Checkpoints(folder).save(2, {"ring": ring.log()})
    np.testing.assert_array_equal(loaded(folder)["ring"]["plain"], ring.arrays["plain"][:95])
    assert len(list((folder / "rows").iterdir())) == 5


@pytest.mark.parametrize("capacity", [60, 300])
def test_returns_that_become_known_later_are_saved_when_they_are(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capacity: int
) -> None:
    """A replay buffer writes into older rows when an episode ends."""
    monkeypatch.setattr(segments, "SMALLEST", 200)
    monkeypatch.setattr(segments, "FACTOR", 2)

    def make() -> ReplayBuffer:
        batch_spec = BatchSpec(mc_return=True)
        return ReplayBuffer(capacity, 2, (1, 1), num_envs=2, batch_spec=batch_spec)

    generator = np.random.default_rng(0)
    buffer, checkpoints = make(), Checkpoints(tmp_path)
    most = 0
    for step in range(300):
        ends = generator.random(2) < 0.07
        obs = generator.random((2, 2))
        buffer.add(obs, obs[:, :1, None], obs[:, 1], obs + 1, np.zeros(2, np.bool_), ends)
        if step % 13 == 0:
            checkpoints.save(step, {"buffer": buffer.state_dict()})
            other = make()
            state = loaded(tmp_path)["buffer"]
            other.load_state_dict(state)
            rows = other.state_dict()["arrays"]
            for name, array in buffer.state_dict()["arrays"].items():
                np.testing.assert_array_equal(rows[name], array)
            assert (rows.written, rows.settled) == (step + 1, state["arrays"].settled)
            most = max(most, len(list(tmp_path.glob("rows/*"))))
    assert most > 2


@pytest.mark.parametrize("returns", [False, True])
def test_a_ring_that_was_emptied_is_saved_as_a_new_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, returns: bool
) -> None:
    """Rows that were saved before never come back, though new ones lie in the same places."""
    monkeypatch.setattr(segments, "SMALLEST", 200)
    monkeypatch.setattr(segments, "FACTOR", 2)

    def make() -> ReplayBuffer:
        spec = BatchSpec(mc_return=returns, history=2)
        return ReplayBuffer(90, 2, (1, 1), num_envs=2, batch_spec=spec)

    generator = np.random.default_rng(0)
    buffer, checkpoints, added = make(), Checkpoints(tmp_path), 0
    for step in range(320):
        if step in (30, 31, 130, 240):  # before the ring is full, empty, and after it went round
            buffer.clear()
            added = 0
            assert len(buffer) == 0 and not buffer.ready
        ends = generator.random(2) < 0.07
        obs = np.full((2, 2), float(step))
        buffer.add(obs, obs[:, :1, None], obs[:, 1], obs + 1, np.zeros(2, np.bool_), ends)
        added += 1
        assert len(buffer) == 2 * min(added, 45)
        if step % 7 == 0:
            checkpoints.save(step, {"buffer": buffer.state_dict()})
            other = make()
            other.load_state_dict(loaded(tmp_path)["buffer"])
            assert len(other) == len(buffer)
            oldest = step - min(added, 45) + 1
            assert {*np.unique(other.state_dict()["arrays"]["obs"])} == {*range(oldest, step + 1)}
            if buffer.ready:
                for mine, its in zip(
                    vars(buffer.sample(50)).values(), vars(other.sample(50)).values(), strict=True
                ):
                    np.testing.assert_array_equal(mine, its)
                buffer.load_state_dict(other.state_dict())  # which has drawn as often
            assert ReplayBuffer.from_state(buffer.state_dict())._size == min(added, 45)


def test_a_checkpoint_of_an_earlier_version_is_gone_on_from(tmp_path: Path, small: None) -> None:
    """It held all rows as arrays and knew no segments."""
    buffer = ReplayBuffer(100, 1, (1, 1))
    row = np.ones((1, 1)), np.ones((1, 1, 1)), np.ones(1), np.ones((1, 1)), [False], [False]
    for _ in range(130):
        buffer.add(*row)
    state = buffer.state_dict()
    state["arrays"] = {name: array.copy() for name, array in state["arrays"].items()}
    Checkpoints(tmp_path).save(1, {"buffer": state})
    place = tmp_path / "step-000000000001" / "state.json"
    document = read_json(place, "state")
    del document["logs"]
    document["tree_sha256"] = sha256_json(document["tree"])
    place.write_text(json.dumps(document))
    checkpoints, other = Checkpoints(tmp_path), ReplayBuffer(100, 1, (1, 1), seed=5)
    other.load_state_dict(checkpoints.load()["buffer"])
    for one in (buffer, other):
        one.add(*row)
    checkpoints.save(2, {"buffer": other.state_dict()})
    assert os.listdir(tmp_path / "rows")
    last = ReplayBuffer(100, 1, (1, 1), seed=6)
    last.load_state_dict(loaded(tmp_path)["buffer"])
    for name, array in buffer.state_dict()["arrays"].items():
        np.testing.assert_array_equal(last.state_dict()["arrays"][name], array)
    assert last.sample(40).obs.equal(buffer.sample(40).obs)
