"""robomimic files that say two things, that are raw, and whose masks are stale."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.datasets.formats.findings import noted
from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check
from trimtab.types import TrimtabError

load = get_format("robomimic").load


def put(name: str, value: Any) -> Callable[[h5py.File], None]:
    """Return what replaces an array, or an attribute behind ``@``; None removes it."""

    def change(file: h5py.File) -> None:
        place, _, attribute = name.partition("@")
        if attribute:
            file[place].attrs[attribute] = value
            return
        if place in file:
            del file[place]
        if value is not None:
            file[place] = value

    return change


def both(*changes: Callable[[h5py.File], None]) -> Callable[[h5py.File], None]:
    return lambda file: [change(file) for change in changes] and None


def under_both(name: str, value: Any) -> Callable[[h5py.File], None]:
    return both(*(put(f"data/demo_1/{group}/{name}", value) for group in ("obs", "next_obs")))


WIDE, ROW = np.zeros((2, 3)), np.zeros((2, 1))
REFUSED: list[tuple[Callable[[h5py.File], None], str]] = [
    (under_both("object", WIDE), "demo_1, key 'obs/object': 3 floats, but 1 floats in demo_0"),
    (
        under_both("object", ROW.astype(int)),
        "'obs/object': 1 whole numbers, but 1 floats in demo_0",
    ),
    (under_both("extra", ROW), "'obs/extra': 1 floats, but missing in demo_0; .* with keys="),
    (under_both("object", None), "'obs/object': missing, but 1 floats in demo_0"),
    (both(under_both("object", None), under_both("thing", ROW)), "'obs/object': missing, but 1"),
    (put("data/demo_1/next_obs/object", WIDE), "demo_1, key 'next_obs/object': 3 floats, but 1"),
    (put("data/demo_1/next_obs/object", None), "'next_obs/object': missing, but 1 floats in 'obs'"),
    (put("data/demo_1/next_obs/object", ROW), "'next_obs/object': row 0 is not the next row of"),
    (
        put("data/demo_0/next_obs/object", ROW),
        "demo_0, key 'next_obs': parts of shapes",
    ),
    (
        both(
            put("data/demo_0/next_obs/object", ROW),
            put("data/demo_0/next_obs/robot0_eef_pos", np.zeros((2, 2))),
        ),
        r"'next_obs/object': shape \(2, 1\), but \(3, 1\) in 'obs'",
    ),
    (put("data/demo_1/obs/object", np.zeros((3, 1))), "key 'obs': parts of shapes"),
    (put("data/demo_0@num_samples", 7), "demo_0, key 'num_samples': of 7 steps, the obs"),
    (put("data/demo_1@num_samples", 7.0), "demo_1, key 'num_samples': of 7 steps"),
    (put("data/demo_1@num_samples", np.array([3])), "demo_1, key 'num_samples': of 3 steps"),
    (put("data/demo_1@num_samples", "2"), "demo_1, attribute 'num_samples': not one number"),
    (put("data@total", np.array([9.0])), "'total' of 'data': 9 steps, but the 2"),
    (both(under_both("object", np.full((2, 1), np.nan))), "episode 1, key 'observations': NaN"),
    (put("data/demo_1/actions", np.zeros((2, 2), int)), "demo_1, key 'actions': discrete actions"),
    (put("data@total", 6), "'total' of 'data': 6 steps, but the 2 demonstrations have 5"),
    (put("data/demo_1", None), "'total' of 'data': 5 steps, but the 1 demonstrations have 3"),
    (put("data/demo_0/states", np.zeros((2, 4))), "demo_0, key 'states': of 2 steps"),
    (put("data/demo_0/dones", np.zeros(4)), "demo_0, key 'dones': of 4 steps"),
    (put("data/demo_0/rewards", np.zeros(1)), "demo_0, key 'rewards': of 1 steps"),
    (put("data/demo_1/dones", [1, 1]), "demo_1, key 'dones' without a reward: set at step 0 of 2"),
    (put("data/demo_1/actions", None), "demo_1, key 'actions': missing"),
    (put("data/demo_0/actions", np.zeros((2, 2))), "demo_0, key 'actions': of 2 steps, the obs"),
    (put("data/demo_1/rewards", np.array([b"0", b"1"])), "demo_1, key 'rewards': type .S1 is not"),
    (put("data/demo_1/dones", np.array([b"0", b"1"])), "demo_1, key 'dones': type .S1 is not a"),
    (put("data/demo_1/actions", np.ones((2, 2), complex)), "'actions': type complex128 is not a n"),
    (put("data/demo_0/states", np.array([b"a"] * 3)), "demo_0, key 'states': type .S1 is not a n"),
    (
        both(put("data/demo_0/rewards", None), put("data/demo_0/rewards/x", np.zeros(3))),
        "demo_0, key 'rewards': not an array",
    ),
    (put("data/demo_1/rewards", h5py.SoftLink("/no")), "'rewards': a link that leads nowhere"),
    (put("data/demo_1/dones", h5py.SoftLink("dones")), "too many links"),
    (
        put("data/demo_1/rewards", h5py.ExternalLink("o.h5", "/x")),
        "'rewards': a link that",
    ),
    (put("data/demo_1/rewards", None), "demo_1, key 'rewards': missing, but demo_0 has it"),
    (put("data/demo_0/dones", None), "demo_0, key 'dones': missing, but demo_1 has it"),
]


@pytest.mark.parametrize("change, message", REFUSED)
def test_a_contradiction_is_refused(
    change: Callable[[h5py.File], None], message: str, foreign: Any, tmp_path: Path
) -> None:
    path = tmp_path / "x.hdf5"
    foreign.robomimic(path)
    with h5py.File(path, "r+") as file:
        change(file)
    with pytest.raises(TrimtabError, match=message) as raised:
        load(path)
    assert str(path) in str(raised.value) and "\n" not in str(raised.value)


def test_common_keys_can_be_named(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    foreign.robomimic(path)
    with h5py.File(path, "r+") as file:
        under_both("aaa", WIDE)(file)
    dataset = load(path, keys="object,robot0_eef_pos")
    with h5py.File(path) as file:
        for episode, demo in zip(dataset.episodes, ("demo_0", "demo_1"), strict=True):
            for group, rows in (("obs", slice(0, -1)), ("next_obs", slice(1, None))):
                found = episode.observations[rows]
                foreign.equal(found[:, :1], file[f"data/{demo}/{group}/object"])
                foreign.equal(found[:, 1:], file[f"data/{demo}/{group}/robot0_eef_pos"])


@pytest.mark.parametrize("keys", ["object,object", "robot0_eef_pos, object,robot0_eef_pos"])
def test_a_key_is_named_once(keys: str, foreign: Any, tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    with pytest.raises(TrimtabError, match="keys= has '.*' twice; name each key once"):
        load(tmp_path / "x.hdf5", keys=keys)


@pytest.mark.parametrize("said", ["{nope", "[1]", "NaN", 3])
def test_a_task_that_cannot_be_read_is_told(said: Any, foreign: Any, tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file["data"].attrs["env_args"] = said
    dataset = load(tmp_path / "x.hdf5")
    (found,) = noted(dataset.recipe)
    assert dataset.env == "unknown" and found.code == "unknown-task"


def test_a_success_inside_is_done(foreign: Any, tmp_path: Path) -> None:
    """As robomimic's modes 0 and 2 write it, and with rewards that are shaped."""
    path = tmp_path / "x.hdf5"
    foreign.robomimic(path)
    for rewards, dones in (
        ([0, 1, 1], [0, 1, 1]),
        ([0, 1, 0], [0, 1, 1]),
        ([0.3, 0.9, 1], [0, 1, 0]),
    ):
        with h5py.File(path, "r+") as file:
            put("data/demo_0/rewards", rewards)(file)
            put("data/demo_0/dones", dones)(file)
        assert foreign.ends(load(path))[0][1] is (rewards == [0, 1, 1])


def test_numbers_of_demonstrations_need_not_follow(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x.hdf5"
    foreign.robomimic(path)
    with h5py.File(path, "r+") as file:
        file.move("data/demo_1", "data/demo_17")
        del file["mask"]
    assert [len(episode) for episode in load(path).episodes] == [3, 2]
    with h5py.File(path, "r+") as file:
        file["data/demo_17"].attrs["num_samples"] = 9
    with pytest.raises(TrimtabError, match="x.hdf5: demo_17, key 'num_samples'"):
        load(path)


@pytest.mark.parametrize("states", [(5, 20), (5,), (1, 3)])
def test_raw_demonstrations_are_named(states: tuple[int, ...], tmp_path: Path) -> None:
    path = tmp_path / "demo.hdf5"
    with h5py.File(path, "w") as file:
        for number in (1, 2):
            file[f"data/demo_{number}/states"] = np.zeros(states)
            file[f"data/demo_{number}/actions"] = np.zeros((states[0], 7))
    with pytest.raises(TrimtabError, match="raw demonstrations of robosuite.*dataset_states_to_ob"):
        recognise(path).load(path)


MASKS: dict[str, tuple[Any, list[int] | None, str]] = {
    "removed": ([b"demo_0", b"demo_7"], [0], "names 'demo_7', which is not there"),
    "all_removed": ([b"demo_8"], None, "names 'demo_8', which is not there: left out"),
    "repeated": ([b"demo_1", b"demo_1"], [1], "names a demonstration twice"),
    "numbers": ([0, 1], None, "is no list of names"),
    "whole": ([b"demo_1"], [1], ""),
}


def test_a_stale_mask_hinders_nothing(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "x.hdf5"
    foreign.robomimic(path)
    with h5py.File(path, "r+") as file:
        del file["mask"]
        for name, (value, _, _) in MASKS.items():
            file[f"mask/{name}"] = np.array(value)
    with caplog.at_level("WARNING"):
        dataset = load(path)
    told = {finding.where: finding.message for finding in noted(dataset.recipe)}
    assert len(dataset) == 2
    assert {code.where for code in check(dataset) if code.code == "stale-mask"} == told.keys()
    for name, (_, places, message) in MASKS.items():
        assert dataset.recipe["masks"].get(name) == places
        assert message in told.get(f"mask/{name}", "") and message in caplog.text
        if places is None:
            with pytest.raises(TrimtabError, match=f"no mask '{name}' of its episodes"):
                load(path, mask=name)
        else:
            assert len(load(path, mask=name)) == len(places)


def test_a_text_observed_is_no_image(
    foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file["data/demo_0/obs/lang"] = np.array([b"a"] * 3)
    dataset = load(tmp_path / "x.hdf5")
    assert "left out, as no numbers: obs/lang" in caplog.text
    assert "images are left out: next_obs/agentview_image, obs/agentview_image" in caplog.text
    assert "obs/lang" in dataset.recipe["left_out"]


def test_rewards_and_ends_may_be_columns(foreign: Any, tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    foreign.minari(tmp_path / "y")
    wanted = [load(tmp_path / "x.hdf5"), get_format("minari").load(tmp_path / "y")]
    for path in (tmp_path / "x.hdf5", tmp_path / "y/data/main_data.hdf5"):
        with h5py.File(path, "r+") as file:
            groups = file.get("data", file)
            for group in groups.values():
                for name in {"rewards", "dones"} & set(group):
                    put(name, np.array(group[name])[:, None])(group)
    found = [load(tmp_path / "x.hdf5"), get_format("minari").load(tmp_path / "y")]
    assert [d.content_hash for d in found] == [d.content_hash for d in wanted]


def test_a_link_inside_the_file_is_followed(foreign: Any, tmp_path: Path) -> None:
    foreign.robomimic(tmp_path / "x.hdf5")
    wanted = load(tmp_path / "x.hdf5").content_hash
    with h5py.File(tmp_path / "x.hdf5", "r+") as file:
        file.move("data/demo_1/obs/object", "data/demo_1/kept")
        file["data/demo_1/obs/object"] = h5py.SoftLink("/data/./demo_1/kept")
        file.move("data/demo_0", "first")
        file["data/demo_0"] = h5py.SoftLink("/first")
    assert load(tmp_path / "x.hdf5").content_hash == wanted
