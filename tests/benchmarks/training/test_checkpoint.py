"""Checkpoints: everything comes back exactly, damage is noticed, a failed write costs nothing."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from disks import files_of_at_most

from trimtab.benchmarks.training.checkpoint import Checkpoints, load_checkpoint
from trimtab.types import TrimtabError

TENSOR_TYPES = [
    torch.float64, torch.float32, torch.float16, torch.bfloat16, torch.int64, torch.int32,
    torch.int16, torch.int8, torch.uint8, torch.bool, torch.complex64,
]  # fmt: skip


def save_checkpoint(folder: Path, step: int, state: Any) -> None:
    Checkpoints(folder).save(step, state)


def round_trip(folder: Path, state: Any) -> Any:
    save_checkpoint(folder, 1, {"it": state})
    loaded = load_checkpoint(folder)
    assert loaded is not None and list(loaded) == ["it"]
    return loaded["it"]


def the_files(folder: Path) -> list[Path]:
    return sorted(path for path in folder.rglob("*") if path.is_file())


@pytest.mark.parametrize("dtype", TENSOR_TYPES, ids=str)
@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 2), (2, 0, 3)], ids=str)
def test_a_tensor_comes_back(tmp_path: Path, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    tensor = (torch.randn(shape, generator=torch.Generator().manual_seed(0)) * 50).to(dtype)
    loaded = round_trip(tmp_path, tensor)
    assert loaded.dtype == dtype
    assert loaded.shape == tensor.shape
    assert torch.equal(loaded, tensor)
    loaded.zero_()  # it is memory of its own, that can be written


@pytest.mark.parametrize("dtype", ["f8", "f4", "f2", "i8", "i4", "u4", "u8", "u1", "?"])
@pytest.mark.parametrize("shape", [(), (0, 4), (5,), (2, 3, 4)], ids=str)
def test_an_array_comes_back(tmp_path: Path, dtype: str, shape: tuple[int, ...]) -> None:
    array = np.asarray(np.random.default_rng(0).random(shape) * 100, dtype)
    loaded = round_trip(tmp_path, array)
    assert isinstance(loaded, np.ndarray)
    assert (loaded.dtype, loaded.shape) == (array.dtype, array.shape)
    np.testing.assert_array_equal(loaded, array)


def test_arrays_that_do_not_lie_in_order_come_back(tmp_path: Path) -> None:
    array = np.arange(12.0).reshape(3, 4)
    state = [array.T, array[:, ::2], torch.arange(12.0).reshape(3, 4).T]
    for before, after in zip(state, round_trip(tmp_path, state), strict=True):
        np.testing.assert_array_equal(np.asarray(after), np.asarray(before))


def test_plain_values_keep_their_type_and_their_keys(tmp_path: Path) -> None:
    state = {
        0: {"integers": {1: 2, "1": 3}},
        "text": 'ä\n"quoted"',
        "none": None,
        "flags": [True, False],
        "large": 2**80,
        "float": [0.1, 1e-320, -0.0, float("inf")],
        "nested": [{"a": [1, [2, {}]]}, []],
        True: "a key that is a flag",
    }
    loaded = round_trip(tmp_path, state)
    assert loaded == state
    assert [type(key) for key in loaded] == [type(key) for key in state]
    assert np.isnan(round_trip(tmp_path, float("nan")))
    assert round_trip(tmp_path, (1, np.float32(0.5))) == [1, 0.5]


def test_names_that_look_alike_do_not_replace_one_another(tmp_path: Path) -> None:
    state = {
        "a": {"b": np.array(1), 1: np.array(2), "1": np.array(3)},
        "a/b": np.array(4),
        "a/1": torch.tensor(5),
    }
    loaded = round_trip(tmp_path, state)
    assert [int(loaded["a"][key]) for key in ("b", 1, "1")] == [1, 2, 3]
    assert [int(loaded["a/b"]), int(loaded["a/1"])] == [4, 5]


@pytest.mark.parametrize(
    "what", [object(), {(1, 2): 3}, {"deep": [{1, 2}]}], ids=["object", "tuple key", "set"]
)
def test_what_cannot_be_held_is_refused_before_anything_is_written(
    tmp_path: Path, what: Any
) -> None:
    with pytest.raises(TrimtabError, match="cannot hold"):
        save_checkpoint(tmp_path / "checkpoint", 1, {"it": what})
    assert not (tmp_path / "checkpoint").exists()


@pytest.mark.bits
@pytest.mark.parametrize("fused", [True, False])
def test_an_optimiser_goes_on_to_the_same_bits(tmp_path: Path, fused: bool) -> None:
    def learner() -> tuple[torch.nn.ParameterList, torch.optim.Adam]:
        weights = torch.nn.ParameterList([torch.ones(3, 2), torch.tensor(0.5)])
        return weights, torch.optim.Adam(weights.parameters(), lr=0.1, fused=fused)

    def steps(weights: torch.nn.ParameterList, optimiser: torch.optim.Adam, count: int) -> None:
        for _ in range(count):
            optimiser.zero_grad()
            (weights[0].square().sum() * weights[1]).backward()
            optimiser.step()

    weights, optimiser = learner()
    steps(weights, optimiser, 3)
    state = {"weights": weights.state_dict(), "optimiser": optimiser.state_dict()}
    loaded = round_trip(tmp_path, state)
    steps(weights, optimiser, 3)
    others, another = learner()
    others.load_state_dict(loaded["weights"])
    another.load_state_dict(loaded["optimiser"])
    assert another.state[others[1]]["exp_avg"].shape == ()
    steps(others, another, 3)
    for one, other in zip(weights, others, strict=True):
        assert torch.equal(one, other)


def test_the_newest_is_kept_alone(tmp_path: Path) -> None:
    assert load_checkpoint(tmp_path / "nowhere") is None
    for step in (9, 10, 100_000):
        save_checkpoint(tmp_path, step, {"step": step})
        assert load_checkpoint(tmp_path) == {"step": step}
        assert [path.name for path in tmp_path.iterdir()] == [f"step-{step:012d}"]


def test_a_step_may_be_saved_again(tmp_path: Path) -> None:
    checkpoints = Checkpoints(tmp_path)
    for number in range(3):
        checkpoints.save(5, {"number": number})
        assert load_checkpoint(tmp_path) == {"number": number}
        assert [path.name for path in tmp_path.iterdir()] == ["step-000000000005"]


def test_what_was_cut_in_the_middle_of_writing_is_not_used(tmp_path: Path) -> None:
    save_checkpoint(tmp_path, 1, {"step": 1})
    whole = tmp_path / "step-000000000001"
    beside = tmp_path / ".step-000000000002.17.abcdef01.tmp"
    beside.mkdir()
    (beside / "arrays.safetensors").write_bytes((whole / "arrays.safetensors").read_bytes()[:5])
    assert load_checkpoint(tmp_path) == {"step": 1}


def test_every_changed_byte_is_noticed(tmp_path: Path) -> None:
    state = {"a": torch.arange(6.0), "credit": 0.25, "rows": [{"return": 1.5}]}
    save_checkpoint(tmp_path, 3, state)
    generator = np.random.default_rng(0)
    for path in the_files(tmp_path):
        data = path.read_bytes()
        for place in generator.integers(len(data), size=60):
            if data[place] in b" \n":  # space between JSON's words says nothing
                continue
            flipped = bytearray(data)
            flipped[place] ^= 1 << int(generator.integers(7))
            path.write_bytes(flipped)
            with pytest.raises(TrimtabError, match="checkpoint") as error:
                load_checkpoint(tmp_path)
            assert "\n" not in str(error.value)
        path.write_bytes(data)
    loaded = load_checkpoint(tmp_path)
    assert loaded is not None and torch.equal(loaded["a"], state["a"])


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_shortened_or_missing_file_is_noticed(tmp_path: Path, share: float) -> None:
    save_checkpoint(tmp_path, 3, {"a": torch.arange(6.0)})
    for path in the_files(tmp_path):
        data = path.read_bytes()
        path.write_bytes(data[: int(share * len(data))])
        with pytest.raises(TrimtabError, match="checkpoint"):
            load_checkpoint(tmp_path)
        path.unlink()
        with pytest.raises(TrimtabError, match="checkpoint"):
            load_checkpoint(tmp_path)
        path.write_bytes(data)


def test_the_older_one_stays_when_the_disk_is_full(tmp_path: Path) -> None:
    folder = tmp_path / "checkpoint"
    save_checkpoint(folder, 1, {"step": 1})
    with files_of_at_most(20_000), pytest.raises(TrimtabError, match="cannot write") as error:
        save_checkpoint(folder, 2, {"a": np.zeros(10_000)})
    assert "\n" not in str(error.value)
    assert load_checkpoint(folder) == {"step": 1}
    assert [path.name for path in folder.iterdir()] == ["step-000000000001"]


@contextmanager
def in_place_of(folder: Path) -> Iterator[None]:
    folder.write_text("a file")
    yield
    folder.unlink()


def test_a_file_in_the_folders_place_is_said_in_one_line(tmp_path: Path) -> None:
    with in_place_of(tmp_path / "checkpoint"), pytest.raises(TrimtabError, match="cannot write"):
        save_checkpoint(tmp_path / "checkpoint", 1, {})
    assert list(tmp_path.iterdir()) == []
