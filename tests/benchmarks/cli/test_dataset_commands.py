"""``trimtab dataset``: any format in, any written format out, and one line for each wrong word."""

from __future__ import annotations

import dataclasses
import json
import os
from pathlib import Path
from typing import Any

import h5py
import numpy as np
import pytest
from PIL import Image

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.data.dataset_figure import draw, plane
from trimtab.benchmarks.training.data.dataset_replay import check_replay
from trimtab.benchmarks.training.data.offline_data import open_dataset
from trimtab.datasets.episodes import Dataset
from trimtab.datasets.formats.minari.reader import load as load_minari
from trimtab.datasets.formats.minari.writer import save as save_minari
from trimtab.datasets.formats.registry import get_format, list_formats


@pytest.fixture
def recorded(tiny: Any) -> Dataset:
    """Four seeded episodes of a task that is there."""
    return load_minari(tiny.dataset)


def answer(capfd: pytest.CaptureFixture[str], *words: str, code: int = 0) -> Any:
    with pytest.raises(SystemExit) as ended:
        main(["dataset", *words, "format=json"])
    shown = capfd.readouterr()
    assert ended.value.code == code, shown.err
    assert shown.err == "" if code < 2 else len(shown.err.splitlines()) == 1
    return json.loads(shown.out) if code < 2 else shown.err


def test_words_without_a_name_have_a_place_after_each_action(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    start, end = tmp_path / "start", tmp_path / "a.hdf5"
    save_minari(recorded, start)
    answer(capfd, "convert", str(start), str(end), "as=robomimic")
    for word in (str(end), f"path={end}"):
        assert answer(capfd, "info", word)["episodes"] == len(recorded.episodes)
    assert answer(capfd, "check", str(end)) == answer(capfd, "check", f"path={end}")
    assert "did you mean two_routes" in answer(capfd, "make", "two_rout", code=2)
    assert "did you mean two_routes" in answer(capfd, "action=make", "two_rout", code=2)
    assert "one word too many" in answer(capfd, "check", str(end), str(end), code=2)
    assert "chek: did you mean check" in answer(capfd, "chek", str(end), code=2)


def test_a_journey_by_the_command_line(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    save_minari(recorded, tmp_path / "start")
    places = {
        "a.hdf5": "robomimic", "b": "lerobot", "c.h5": "d4rl", "d.npz": "", "end/x-v0": "minari",
    }  # fmt: skip
    source = tmp_path / "start"
    for name, kind in places.items():
        words = [f"as={kind}"] if kind else []
        done = answer(capfd, "convert", f"from={source}", f"to={tmp_path / name}", *words)
        assert done["content_hash_before"] == done["content_hash"] == recorded.content_hash
        assert (done["to_format"], done["lost"]) == (kind or "ogbench", [])
        source = tmp_path / name
        info = answer(capfd, "info", f"path={source}")
        assert (info["format"], info["content_hash"]) == (done["to_format"], recorded.content_hash)
    assert answer(capfd, "check", f"path={source}")["findings"] == []


def test_a_strangers_file_with_hints(tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    source, to = tmp_path / "x.hdf5", tmp_path / "mine/x-v1"
    generator = np.random.default_rng(0)
    with h5py.File(source, "w") as file:
        file["observations"] = generator.normal(size=(9, 3))
        file["actions"] = generator.uniform(-1, 1, size=(9, 2))
        file["rewards"] = generator.normal(size=9)
        file["terminals"] = np.arange(9) == 4
    before = source.read_bytes()
    words = ("id=mine/x-v1", "env=mine/Arm-v0", "horizon=9", "as=minari")
    done = answer(capfd, "action=convert", f"from={source}", f"to={to}", *words)
    assert (done["id"], done["env"], done["episodes"]) == ("mine/x-v1", "mine/Arm-v0", 2)
    assert source.read_bytes() == before
    assert load_minari(to).content_hash == done["content_hash"]


def test_a_contradicted_control_rate(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    folder, to = tmp_path / "x", tmp_path / "y"
    get_format("lerobot").save(recorded, folder)  # type: ignore[misc]
    (folder / "meta/trimtab.json").unlink()
    place = folder / "meta/info.json"
    place.write_text(json.dumps({**json.loads(place.read_text()), "fps": 4}))
    (checked, *_) = answer(capfd, "check", str(folder), code=1)["findings"]
    (told,) = answer(capfd, "info", str(folder))["findings"]
    assert checked == told and (told["level"], told["code"]) == ("error", "control-rate")
    assert "info.json 4" in told["message"]
    convert = ["convert", str(folder), str(to), "as=minari", "id=mine/y-v0"]
    assert "say control_rate=<Hz>" in answer(capfd, *convert, code=2)
    assert not to.exists()
    done = answer(capfd, *convert, "control_rate=7.5")
    assert done["steps"] == recorded.num_steps and load_minari(to).control_rate == 7.5
    for word in ("0", "nan", "inf", "fast"):
        said = answer(capfd, "info", str(folder), f"control_rate={word}", code=2)
        assert f"control_rate={word}: must be a number greater than 0" in said


def test_camera_frames_by_the_command_line(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    filmed = [
        dataclasses.replace(e, infos={**e.infos, "top": np.zeros((len(e), 32, 48, 3), np.uint8)})
        for e in recorded.episodes
    ]
    save_minari(dataclasses.replace(recorded, episodes=tuple(filmed)), tmp_path / "a")
    folder = tmp_path / "b"
    done = answer(capfd, "convert", f"from={tmp_path / 'a'}", f"to={folder}", "as=lerobot")
    assert done["lost"] == [
        "info 'top' becomes a video of H.264, which changes its pixels a little"
    ]
    assert done["content_hash"] == recorded.content_hash != done["content_hash_before"]
    assert "top" in answer(capfd, "info", f"path={folder}", "frames=all")["infos"]
    assert "top" in answer(capfd, "info", f"path={folder}", "frames=top")["infos"]
    assert "top" not in answer(capfd, "info", f"path={folder}")["infos"]
    assert answer(capfd, "check", f"path={folder}", "frames=all")["findings"] == []
    blind = answer(capfd, "convert", f"from={folder}", f"to={tmp_path / 'd'}", "as=lerobot")
    assert blind["left_out"] == ["observation.images.top"]
    to = f"to={tmp_path / 'c'}"
    back = answer(capfd, "convert", f"from={folder}", to, "as=minari", "frames=true")
    assert back["content_hash"] == back["content_hash_before"] != recorded.content_hash
    assert load_minari(tmp_path / "c").episodes[0].infos["top"].shape[1:] == (32, 48, 3)
    assert "there are observation.images.top" in answer(
        capfd, "info", f"path={folder}", "frames=side", code=2
    )
    assert "frames= does not apply to minari data" in answer(
        capfd, "info", f"path={tmp_path / 'a'}", "frames=all", code=2
    )


def test_tables_say_what_was_written_and_lost(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, *others = recorded.episodes
    odd = dataclasses.replace(first, infos={**first.infos, "only here": first.rewards})
    save_minari(dataclasses.replace(recorded, episodes=(odd, *others)), tmp_path / "x")
    to = tmp_path / "y.npz"
    shown = ""
    for words in (["convert", f"from={tmp_path / 'x'}", f"to={to}"], ["info", f"path={to}"]):
        with pytest.raises(SystemExit) as ended:
            main(["dataset", *words])
        assert ended.value.code == 0
        shown += capfd.readouterr().out
    assert "lost: info 'only here' is not in every episode" in shown
    for part in ("content_hash_before", "ogbench", "obs_max", "action_high"):
        assert part in shown
    assert get_format("ogbench").load(to).content_hash == recorded.content_hash


def test_what_a_strangers_file_lost_is_told_on_the_whole_way(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    source, ours, again = (tmp_path / name for name in ("x.npz", "ours.hdf5", "again.npz"))
    generator = np.random.default_rng(0)
    limits = {"obs": 3, "action": 2}
    np.savez(
        source,
        states=generator.uniform(-1, 1, size=(5, 3)),
        actions=generator.uniform(-1, 1, size=(5, 2)),
        traj_lengths=[3, 2],
        images=np.zeros((5, 3, 4, 4), np.uint8),
    )
    np.savez(
        tmp_path / "normalization.npz",
        **{f"{name}_min": -np.ones(size) for name, size in limits.items()},
        **{f"{name}_max": np.ones(size) for name, size in limits.items()},
    )
    line = "left out: images of the dppo data, because Trimtab reads vectors only"
    for words in (
        ["convert", f"from={source}", f"to={ours}", "as=robomimic"],
        ["convert", f"from={ours}", f"to={again}"],
        ["info", f"path={again}"],
    ):
        with pytest.raises(SystemExit) as ended:
            main(["dataset", *words])
        shown = capfd.readouterr().out
        assert ended.value.code == 0
        assert line in shown.splitlines() and "nothing is lost" not in shown
        missing = "lost: the last observation of 2 of 2 episodes was not recorded" in shown
        assert missing == (words[0] == "convert")
    assert answer(capfd, "info", f"path={again}")["left_out"] == ["images"]


def test_wrong_words(recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    folder = tmp_path / "x"
    save_minari(recorded, folder)
    (tmp_path / "thesis.hdf5").write_text("x")
    (tmp_path / "mine.png").write_bytes(b"\x89PNG")
    os.mkfifo(tmp_path / "pipe.png")
    os.mkfifo(tmp_path / "pipe.hdf5")
    get_format("d4rl").save(recorded, tmp_path / "d.hdf5")  # type: ignore[misc]
    get_format("robomimic").save(recorded, tmp_path / "r.hdf5")  # type: ignore[misc]
    before = {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()}
    here, to = f"from={folder}", f"to={tmp_path / 'y.npz'}"
    thesis, other = (f"to={tmp_path / name}" for name in ("thesis.hdf5", "d.hdf5"))
    cases: list[tuple[list[str], str]] = [
        (["convert"], "needs from="),
        (["convert", here], "needs to="),
        (["convert", here, f"to={tmp_path / 'y'}"], "say as= which format to write"),
        (["convert", here, f"to={tmp_path / 'y'}", "as=zarr"], "no such dataset format"),
        (["convert", here, to, "as=dppo"], "only read here"),
        (["convert", here, f"to={tmp_path / 'pipe.hdf5'}", "as=d4rl"], "neither a file nor a fold"),
        (["convert", f"from={tmp_path / 'z'}", "to=y.npz"], "no such file or folder"),
        (["convert", f"from={tmp_path}", "to=y.npz"], "in none of the formats"),
        (["convert", here, f"to={folder}", "as=minari"], "lies in from="),
        (["convert", here, f"to={folder}/y.npz"], "lies in from="),
        (["convert", here, thesis, "as=d4rl"], "in its place"),
        (["convert", here, other, "as=robomimic"], "in its place"),
        (["convert", here, to, "horizon=3"], "horizon= does not apply"),
        (["convert", here, to, "env=gym/Hopper-v5"],
         f"the file says that it is of {recorded.env}; leave env= out"),
        (["info", f"path={tmp_path / 'd.hdf5'}", "env=gym/Hopper-v5"], "leave env= out"),
        (["info", f"path={tmp_path / 'd.hdf5'}", "horizon=3"], "and Trimtab wrote this"),
        (["info", f"path={tmp_path / 'r.hdf5'}", "keys=foo"], "and Trimtab wrote this"),
        (["info", f"path={folder}", "keys=foo"], "it is one vector; change keys="),
        (["convert", here, to, "mask=train"], "no mask 'train'"),
        (["convert", here, to, "id=plain "], "is not of the"),
        (["convert", f"path={folder}", here, to], "path= belongs to action=check or info"),
        (["convert", here, to, "dataset.episodes=5"], "dataset.episodes=5: is a recipe's"),
        (["convert", here, to, f"out={tmp_path / 'made'}"], "out= belongs to"),
        (["info", f"path={folder}", f"out={tmp_path / 'made'}"], "is where datasets are made"),
        (["info", "dataset=d4rl/hopper-medium-v2", "dataset.seed=1"], "leave dataset.seed=1 out"),
        (["list", f"path={folder}"], "path= belongs to"),
        (["list", "dataset=two_routes"], "dataset= belongs to"),
        (["list", "dataset.episodes=5"], "dataset.episodes=5: is a recipe's"),
        *((["list", f"{word}=3"], f"{word}= belongs to")
          for word in ("env", "id", "mask", "horizon", "keys", "control_rate")),
        (["info", f"path={folder}", "to=y"], "to= belongs to action=convert"),
        (["check", f"path={folder}", "figure=y.png"], "figure= belongs to action=info"),
        (["info", f"path={tmp_path / 'thesis.hdf5'}"], "too damaged to tell"),
        (["info", "dataset=two_routes", "env=x"], "give path="),
        (["info", f"path={folder}", f"figure={folder}/data/metadata.json/f.png"], "cannot write"),
        (["info", f"path={folder}", f"figure={tmp_path / 'thesis.hdf5'}"], "that ends in .png"),
        (["info", f"path={folder}", f"figure={tmp_path / 'mine.png'}"], "has not made; name ano"),
        (["info", f"path={folder}", f"figure={tmp_path / 'pipe.png'}"], "has not made; name ano"),
        (["info", f"path={folder}", "figure=."], "that ends in .png"),
    ]  # fmt: skip
    for words, part in cases:
        assert part in answer(capfd, *words, code=2), words
    assert {p: p.read_bytes() for p in tmp_path.rglob("*") if p.is_file()} == before


def test_env_names_a_task_that_the_file_does_not(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    unknown = dataclasses.replace(recorded, env="PointMaze_UMaze-v3", fingerprint=None)
    for name in ("minari", "ogbench"):
        format = get_format(name)
        assert format.save is not None
        path = tmp_path / f"{name}{format.suffixes[0]}"
        format.save(unknown, path)
        told = answer(capfd, "info", f"path={path}", "env=gym/Hopper-v5")
        assert told["env"] == "gym/Hopper-v5"
    save_minari(recorded, tmp_path / "same")
    same = answer(capfd, "info", f"path={tmp_path / 'same'}", f"env={recorded.env}")
    assert same["env"] == recorded.env


def test_what_a_replay_finds(recorded: Dataset) -> None:
    assert check_replay(recorded) == []
    first, *others = recorded.episodes

    def changed(**fields: Any) -> Dataset:
        episode = dataclasses.replace(first, **fields)
        return dataclasses.replace(recorded, episodes=(episode, *others))

    def found(dataset: Dataset) -> list[tuple[str, str]]:
        return [(finding.code, finding.where) for finding in check_replay(dataset)]

    rewards = first.rewards + np.float32(0.5) * (np.arange(len(first)) == 7)
    assert found(changed(rewards=rewards)) == [("replay-reward", "episode 0, step 8")]
    assert found(changed(seed=12345)) == [("replay-observation", "episode 0, step 0")]
    swapped = changed(actions=first.actions[::-1])
    assert ("replay-observation", "episode 0, step 1") in found(swapped)
    ended = changed(terminations=~first.terminations)
    assert found(ended) == [("replay-termination", "episode 0, step 1")]
    other = dataclasses.replace(recorded, fingerprint="0" * 12)
    assert found(other) == [("other-physics", recorded.env)]
    assert found(dataclasses.replace(recorded, env="robotics/PointMaze-Nowhere-v0")) == []
    assert found(dataclasses.replace(recorded, env="gym/Hopper-v5")) == [
        ("other-shape", "gym/Hopper-v5")
    ]


def test_check_tells_what_a_replay_found(
    recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    episodes = [dataclasses.replace(e, rewards=e.rewards + 1) for e in recorded.episodes]
    save_minari(dataclasses.replace(recorded, episodes=tuple(episodes)), tmp_path / "x")
    findings = answer(capfd, "check", f"path={tmp_path / 'x'}", code=1)["findings"]
    assert {f["code"] for f in findings} == {"replay-reward"}


def test_a_strangers_actions_are_compared_with_the_limits_of_its_task(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    generator = np.random.default_rng(0)
    with h5py.File(tmp_path / "x.hdf5", "w") as file:
        file["observations"] = generator.normal(size=(40, 11))
        file["actions"] = generator.uniform(-5, 5, size=(40, 3))
        file["rewards"] = generator.normal(size=40)
        file["terminals"] = np.isin(np.arange(40), (14, 39))
        file["timeouts"] = np.zeros(40, bool)
    path = f"path={tmp_path / 'x.hdf5'}"
    known = answer(capfd, "check", path, "env=gym/Hopper-v5", code=1)
    assert [f["where"] for f in known["findings"] if f["code"] == "action-out-of-range"] == [
        f"action {index}" for index in range(3)
    ]
    assert "no seeds" in known["not_replayed"]
    unknown = answer(capfd, "check", path)
    assert all(f["level"] == "warning" for f in unknown["findings"])
    assert "name its task with env=" in unknown["not_replayed"]
    with pytest.raises(SystemExit):
        main(["dataset", "check", path])
    assert "no episode was played again: its environment unknown" in capfd.readouterr().out


def test_the_figure(recorded: Dataset, tmp_path: Path, capfd: pytest.CaptureFixture[str]) -> None:
    save_minari(recorded, tmp_path / "x")
    picture = tmp_path / "f.png"
    answer(capfd, "info", f"path={tmp_path / 'x'}", f"figure={picture}")
    with Image.open(picture) as image:
        assert image.size > (800, 600)
        colours = image.convert("RGB").getcolors(1 << 24)
    assert colours is not None and len(colours) > 50  # not an empty frame
    one = dataclasses.replace(recorded, episodes=recorded.episodes[:1])
    draw(one, picture)  # one return, one length


def test_the_plane_is_where_the_data_spreads() -> None:
    generator = np.random.default_rng(0)
    hidden = generator.normal(size=(500, 2)) * [3, 1]
    mixed = np.concatenate([hidden[:, :1] @ np.ones((1, 3)), hidden[:, 1:] @ np.ones((1, 2))], 1)
    points, labels = plane(mixed.astype(np.float32))
    assert labels == ("principal component 1 (60%)", "principal component 2 (40%)")
    for axis in range(2):
        assert abs(np.corrcoef(points[:, axis], hidden[:, axis])[0, 1]) > 0.999
    flat, labels = plane(mixed[:, :2].astype(np.float32))
    np.testing.assert_allclose(flat, mixed[:, :2], rtol=1e-6)
    assert labels == ("observation 0", "observation 1")
    assert plane(mixed[:, :1])[0].shape == (500, 2)


def test_a_recipe_is_made_with_settings_of_its_own(
    tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    words = ["dataset=two_routes", f"out={tmp_path}"]
    with pytest.raises(SystemExit) as ended:
        main(["dataset", "make", *words, "dataset.episodes=2", "format=json"])
    assert ended.value.code == 0
    made = json.loads(capfd.readouterr().out)
    assert made["episodes"] == 2 and made["recipe"]["episodes"] == 2
    for wrong, told in (
        ("dataset.episode=2", "did you mean episodes?"),
        ("dataset.controller.niose=0", "did you mean noise?"),
        ("dataset.episodes=x", "must be a whole number"),
        ("dataset.episodes", "give it a value"),
    ):
        assert told in answer(capfd, "make", *words, wrong, code=2)
    assert "add dataset=<recipe>" in answer(capfd, "info", "dataset.seed=1", "path=x", code=2)


@pytest.mark.parametrize("name", [f.name for f in list_formats() if f.save is not None])
def test_a_run_opens_every_format(recorded: Dataset, name: str, tmp_path: Path) -> None:
    format = get_format(name)
    assert format.save is not None
    path = tmp_path / f"x{format.suffixes[0]}"
    format.save(recorded, path)
    assert open_dataset(path, tmp_path, None).content_hash == recorded.content_hash
