"""Wrong input to a run: one line that says what, where and what to do, and nothing half written."""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest

from trimtab.benchmarks.cli.main import run
from trimtab.benchmarks.training.base import policy_folder
from trimtab.benchmarks.training.rows import collect_episodes
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.train import train
from trimtab.datasets.formats.registry import get_format
from trimtab.types import TrimtabError


def refused(words: list[str], out: Path) -> str:
    """Return the one line with which a run is refused, which leaves nothing half written."""
    with pytest.raises(TrimtabError) as error:
        train(compose_run(words))
    message = str(error.value)
    assert "\n" not in message and len(message) < 600
    if out.is_dir():
        assert not half_written(out)
    return message


def half_written(out: Path) -> list[Path]:
    """Return temporary files, results and bundles below ``out``."""
    names = {"result.json", "policy", "episodes.parquet"}
    return [path for path in out.rglob("*") if path.suffix == ".tmp" or path.name in names]


# ---- datasets ------------------------------------------------------------------------------------


def without_seal(folder: Path) -> None:
    """Make a dataset one of a stranger, which has no hashes of ours to be checked against."""
    path = folder / "data" / "metadata.json"
    kept = {k: v for k, v in json.loads(path.read_text()).items() if not k.startswith("trimtab_")}
    path.write_text(json.dumps(kept))


def edit(change: Callable[[h5py.File], None]) -> Callable[[Path], None]:
    def apply(folder: Path) -> None:
        without_seal(folder)
        with h5py.File(folder / "data" / "main_data.hdf5", "r+") as file:
            change(file)

    return apply


def replace(key: str, new: Callable[[Any], Any]) -> Callable[[Path], None]:
    def change(file: h5py.File) -> None:
        array = file["episode_1"][key][()]
        del file["episode_1"][key]
        file["episode_1"][key] = new(array)

    return edit(change)


def cut(folder: Path) -> None:
    path = folder / "data" / "main_data.hdf5"
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def cut_without_seal(folder: Path) -> None:
    without_seal(folder)
    cut(folder)


def flip(folder: Path) -> None:
    path = folder / "data" / "main_data.hdf5"
    data = bytearray(path.read_bytes())
    data[len(data) // 2] ^= 1
    path.write_bytes(data)


def empty(folder: Path) -> None:
    without_seal(folder)
    path = folder / "data" / "metadata.json"
    document = {**json.loads(path.read_text()), "total_episodes": 0, "total_steps": 0}
    path.write_text(json.dumps(document))
    with h5py.File(folder / "data" / "main_data.hdf5", "w"):
        pass


def poison(array: Any) -> Any:
    array[3] = np.nan
    return array


DATASETS: dict[str, tuple[Callable[[Path], Any], str]] = {
    "missing": (shutil.rmtree, "there is no such file or folder"),
    "no data file": (lambda folder: (folder / "data" / "main_data.hdf5").unlink(), "is missing"),
    "truncated": (cut, "truncated or changed"),
    "truncated, a stranger's": (cut_without_seal, "main_data.hdf5"),
    "a byte changed": (flip, "truncated or changed"),
    "not a number": (replace("observations", poison), "episode 1, key 'observations': NaN"),
    "an infinite reward": (replace("rewards", lambda x: x + np.inf), "key 'rewards': NaN or inf"),
    "an action too few": (replace("actions", lambda x: x[:-1]), "episode 1, key"),
    "an observation too few": (replace("observations", lambda x: x[:-1]), "key 'observations'"),
    "flat actions": (replace("actions", lambda x: x[:, 0]), "episode 1, key 'actions': shape"),
    "other action lengths": (replace("actions", lambda x: x[:, :1]), "key 'actions': shape"),
    "text for numbers": (replace("rewards", lambda x: [b"a"] * len(x)), "'rewards'"),
    "no actions": (edit(lambda file: file["episode_1"].__delitem__("actions")), "actions"),
    "no episodes": (empty, "no episodes"),
}


@pytest.mark.parametrize("case", DATASETS)
def test_a_wrong_dataset(case: str, tiny: Any, tmp_path: Path) -> None:
    damage, expected = DATASETS[case]
    folder = tmp_path / "dataset"
    shutil.copytree(tiny.dataset, folder)
    damage(folder)
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={folder}"]
    message = refused(words, tmp_path / "out")
    assert expected in message and str(folder) in message
    assert not (tmp_path / "out").exists()


def test_a_strangers_dataset_is_taken_if_it_is_right(tiny: Any, tmp_path: Path) -> None:
    """What the cases above change is what is refused, not the missing seal."""
    folder = tmp_path / "dataset"
    shutil.copytree(tiny.dataset, folder)
    without_seal(folder)
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={folder}", "offline_steps=2"]
    assert train(compose_run(words)).summary["updates"] == 2


def test_a_dataset_of_another_task(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.cloning(tmp_path), "env=gym/Hopper-v5"]
    message = refused(words, tmp_path)
    assert "does not fit gym/Hopper-v5" in message and "was made in robotics/" in message


def test_rewards_of_another_single_task(tiny: Any, tmp_path: Path) -> None:
    tasks = [f"ogbench/pointmaze-medium-singletask{number}-v0" for number in ("", "-task2")]
    places = np.array([[0, 0], [10, 10], [20, 20], [20, 19]], np.float32)
    np.savez(
        tmp_path / "theirs.npz", observations=places, actions=places / 20, qpos=places,
        terminals=np.array([0, 0, 0, 1.0]),
    )  # fmt: skip
    format = get_format("ogbench")
    assert format.save is not None
    format.save(format.load(tmp_path / "theirs.npz", env=tasks[0]), tmp_path / "ours.npz")
    words = [*tiny.cloning(tmp_path / "out"), f"dataset={tmp_path / 'ours.npz'}", "offline_steps=2"]
    assert train(compose_run([*words, f"env={tasks[0]}"])).summary["updates"] == 2
    words.append(f"out={tmp_path / 'other'}")
    message = refused([*words, f"env={tasks[1]}"], tmp_path / "other")
    assert "has the rewards of ogbench/pointmaze-medium-singletask-task1-v0, not of" in message
    assert message.endswith(f"with env={tasks[1]}")


# ---- bases ---------------------------------------------------------------------------------------


@pytest.mark.parametrize("method", ["frozen", "dsrl_sac"])
def test_a_base_of_another_task(method: str, tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path), f"algorithm={method}", f"base={tiny.base}", "env=gym/Hopper-v5"]
    message = refused(words, tmp_path)
    assert f"base {tiny.base}" in message
    assert "does not fit gym/Hopper-v5: observation length" in message


def test_a_base_with_shorter_chunks(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.online(tmp_path, "dsrl_sac"), "act_steps=5"]
    assert "act_steps=5: base" in refused(words, tmp_path)


@pytest.mark.parametrize("file", ["model.safetensors", "golden.safetensors", "config.json"])
def test_a_base_with_a_byte_changed(file: str, tiny: Any, tmp_path: Path) -> None:
    base = tmp_path / "base"
    shutil.copytree(tiny.base, base)
    path = base / "policy" / file
    data = bytearray(path.read_bytes())
    place = len(data) * 2 // 3
    data[place] = ord("7") if data[place] != ord("7") else ord("8")
    path.write_bytes(data)
    words = [*tiny.task(tmp_path / "out"), "algorithm=frozen", f"base={base}"]
    assert str(base) in refused(words, tmp_path / "out")
    path.unlink()
    assert str(base) in refused(words, tmp_path / "out")


def test_a_base_that_is_not_there_or_not_finished(tiny: Any, tmp_path: Path) -> None:
    words = [*tiny.task(tmp_path / "out"), "algorithm=dsrl_sac"]
    message = refused([*words, f"base={tmp_path}/nowhere"], tmp_path / "out")
    assert "nowhere does not exist; give the folder of a run or of a bundle" in message
    unfinished = tmp_path / "unfinished"
    shutil.copytree(tiny.base, unfinished, ignore=shutil.ignore_patterns("policy", "result.json"))
    message = refused([*words, f"base={unfinished}"], tmp_path / "out")
    assert "is a run that has not finished; run it again to finish it" in message
    (tmp_path / "empty").mkdir()
    assert str(tmp_path / "empty") in refused([*words, f"base={tmp_path}/empty"], tmp_path / "out")
    assert not (tmp_path / "out").exists()
    assert policy_folder(str(tiny.base)) == policy_folder(str(tiny.base / "policy"))


# ---- places and values ---------------------------------------------------------------------------


def test_out_is_a_file(tiny: Any, tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.write_text("a file")
    message = refused(tiny.cloning(out), out)
    assert f"cannot write {out}" in message and "choose a writable folder with out=" in message
    assert out.read_text() == "a file"


@pytest.mark.parametrize(
    ("words", "part"),
    [
        (["policy.hidden=[]"], "hidden=[]: a denoiser"),
        (["dataset.episodes=abc"], "dataset.episodes=abc"),
        (["dataset.episodes=0"], "at least 1"),
        (["dataset.controller.routes=7"], "dataset.controller"),
        (["algorithm.batch_size=0"], "algorithm.batch_size=0"),
        (["algorithm.ema_decay=2"], "algorithm.ema_decay=2"),
    ],
)
def test_a_value_out_of_range_is_named(words: list[str], part: str, tmp_path: Path) -> None:
    """One line, whatever part of the run the value belongs to, and no result."""
    base = [
        "env=robotics/PointMaze-TwoRoutes-v0", "algorithm=bc", "policy=flow",
        "dataset=two_routes", "dataset.episodes=2", "offline_steps=2", f"out={tmp_path}",
    ]  # fmt: skip
    with pytest.raises(TrimtabError) as raised:
        train(compose_run([*base, *words]))
    assert part.strip() in str(raised.value)
    assert "\n" not in str(raised.value)
    assert not list(tmp_path.rglob("result.json"))


@pytest.mark.parametrize(
    ("words", "said"),
    [
        ("leaderboard runs=,", "runs=,: names no place"),
        ("compare a=x b=y", "x: there is no such file or folder, and .* runs=runs, which does not"),
        ("compare a= b=y", "a= is empty; give it a value"),
        ("bench suite=quickstart plan runs=file", "runs=file: is a file; name a folder"),
    ],
)
def test_a_wrong_place_of_runs(
    words: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "file").write_text("x")
    with pytest.raises(TrimtabError, match=said) as error:
        run(words.split())
    assert "\n" not in str(error.value)


def test_rows_of_an_evaluation_are_put_into_a_new_folder(tiny: Any, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("x")
    for out in (tiny.base, tmp_path / "file"):
        with pytest.raises(TrimtabError, match=f"out={out}: is there already"):
            run(["evaluate", f"policy={tiny.base}", "episodes=1", f"out={out}"])
    call = ["evaluate", f"policy={tiny.base}", "episodes=1", "seed=7", f"out={tmp_path / 'new'}"]
    assert run(call) == 0
    (row,) = collect_episodes(tmp_path / "new").to_pylist()
    assert (row["eval_seed"], row["eval_episode"]) == (7, 0)
    result = json.loads((tmp_path / "new" / "vla_eval.json").read_text())
    (episode,) = result["tasks"][0]["episodes"]
    assert (result["seed"], episode["steps"]) == (7, row["length"])
    assert episode["metrics"]["return"] == row["return"]
    with pytest.raises(TrimtabError, match="is there already"):
        run(call)
