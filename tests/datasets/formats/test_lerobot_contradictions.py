"""LeRobot folders that say two things: refused with the place, or a finding about time."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from trimtab.datasets.formats.findings import noted
from trimtab.datasets.formats.registry import get_format, recognise
from trimtab.datasets.lint import check
from trimtab.datasets.sources import streaming
from trimtab.types import TrimtabError

load = get_format("lerobot").load
Change = Callable[[Path], None]


def info(**changes: Any) -> Change:
    """Return what sets keys of info.json; None removes one."""

    def change(folder: Path) -> None:
        place = folder / "meta/info.json"
        merged = json.loads(place.read_text()) | changes
        place.write_text(json.dumps({k: v for k, v in merged.items() if v is not None}))

    return change


def feature(name: str, **changes: Any) -> Change:
    def change(folder: Path) -> None:
        place = folder / "meta/info.json"
        document = json.loads(place.read_text())
        document["features"].setdefault(name, {}).update(changes)
        place.write_text(json.dumps(document))

    return change


def column(name: str, values: Any) -> Change:
    """Return what replaces a column of the two files of frames; None drops it."""

    def change(folder: Path) -> None:
        for file, rows in zip(
            sorted(folder.rglob("data/*/*.parquet")), ((0, 3), (3, 5)), strict=True
        ):
            table = pq.read_table(file)
            table = table.drop([name]) if name in table.column_names else table
            if values is not None:
                table = table.append_column(name, pa.array(np.asarray(values)[slice(*rows)]))
            pq.write_table(table, file)

    return change


def episodes(**columns: Any) -> Change:
    def change(folder: Path) -> None:
        place = folder / "meta/episodes/chunk-000/file-000.parquet"
        place.parent.mkdir(parents=True)
        whole = {
            "episode_index": [0, 1], "length": [3, 2], "dataset_from_index": [0, 3],
            "dataset_to_index": [3, 5],
        }  # fmt: skip
        pq.write_table(pa.table(whole | columns), place)

    return change


TWICE = [0, 1, 1, 0, 1]
REFUSED: list[tuple[Change, str]] = [
    (column("frame_index", TWICE), "frame_index 1 of episode_index 0 is there twice"),
    (column("frame_index", [0, 1, 2, 0, -1]), "key 'frame_index': not one whole number from 0"),
    (column("episode_index", [0, 1, 0, 1, 1]), "episode_index 0 begin at row 0 and again at row 2"),
    (column("episode_index", [0, 0, 0, 0, 0]), "1 episodes, but info.json says 2"),
    (column("index", [0, 1, 2, 2, 3]), "index 2 is there twice, in the episodes 0 and 1"),
    (column("index", [0, 1, 7, 8, 9]), "in episode 0, index 1 is followed by 7"),
    (column("task_index", [0, 0.5, 0, 0, 0]), "'task_index': floats, but info.json says whole"),
    (column("action", None), "key 'action': missing"),
    (column("next.reward", list("01010")), "'next.reward': not readable .*type string is not a nu"),
    (feature("next.reward", dtype="string"), "key 'next.reward': type string is not a number"),
    (feature("next.done", dtype="string"), "key 'next.done': type string is not a number"),
    (feature("timestamp", dtype="string"), "key 'timestamp': type string is not a number"),
    (feature("index", dtype="string"), "key 'index': type string is not a number"),
    (feature("action", dtype="complex64"), "key 'action': type complex64 is not a number"),
    (feature("next.reward", shape=[0]), r"key 'next.reward': .* shape \[0\] is none"),
    (column("next.reward", None), "'next.reward': info.json has this feature, the table"),
    (column("observation.torque", np.zeros(5)), "'observation.torque': a column of the table"),
    (column("next.reward", [1, 0, 0, 0, 0]), "'next.reward': whole numbers, but .* says floats"),
    (column("next.done", [0, 1, 1, 0, 1]), "'next.done': whole numbers, but info.json says bool"),
    (column("next.done", [False, True, True, False, True]), "episode 0, key 'next.done': set at "
     "step 1 of 3, inside the episode"),
    (feature("action", names=["a", "b", "c"]), "feature 'action': it has 3 names and 2 numbers"),
    (feature("action", names={"motors": ["a", "b", "c"]}), "it has 3 names and 2 numbers"),
    (feature("action", shape=[3]), "key 'action': not readable"),
    (info(total_frames=6), "5 frames, but info.json says 6"),
    (info(total_episodes=3), "2 episodes, but info.json says 3"),
    (info(codebase_version="v2.1"), "info.json says version 2, but data/.* is of version 3"),
    (info(codebase_version="v1.6"), "version v1.6 is not read here, only v2.0, v2.1 and v3.0"),
    (info(codebase_version=None), "'codebase_version' is missing"),
    (info(fps=None), r"'fps' is missing; write it there \(or say control_rate=<Hz>\)"),
    (info(fps=0), "'fps' is not a number of frames a second"),
    (info(features={"camera": {"dtype": "video"}}), "the features of info.json are camera"),
    (episodes(length=[2, 3]), "episode 0 has 'length' 2, its frames say 3"),
    (episodes(episode_index=[0, 4]), "episode 1 has frames and is not listed"),
    (episodes(episode_index=[1, 1]), "episode 1 is listed twice"),
    (episodes(dataset_from_index=[0, 2]), "episode 1 has 'dataset_from_index' 2, its frames say 3"),
    (episodes(dataset_to_index=[3, 9]), "episode 1 has 'dataset_to_index' 9, its frames say 5"),
    (lambda path: (path / "meta/info.json").write_text("{") and None, "is not readable JSON"),
]  # fmt: skip


@pytest.mark.parametrize("change, message", REFUSED)
def test_a_contradiction_is_refused(
    change: Change, message: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.lerobot(tmp_path / "x")
    change(tmp_path / "x")
    with pytest.raises(TrimtabError, match=message) as raised:
        recognise(tmp_path / "x").load(tmp_path / "x")
    assert str(tmp_path / "x") in str(raised.value) and "\n" not in str(raised.value)


def flags(truncated: list[int], terminated: list[int] | None = None) -> dict[str, Any]:
    more = {} if terminated is None else {"next.terminated": np.array(terminated, bool)}
    return {"next.truncated": np.array(truncated, bool), **more}


@pytest.mark.parametrize(
    "further, message",
    [
        (flags([0, 1, 0, 0, 1]), "episode 0, key 'next.truncated': set at step 1 of 3"),
        (flags([0, 0, 0, 0, 1], [0, 0, 1, 1, 0]), "episode 1, key 'next.terminated': set at step"),
        (flags([0, 0, 0, 0, 0], [0, 0, 1, 0, 0]), "episode 1 ends with 'next.done' True, which"),
        ({**flags([0, 0, 1, 0, 1]), "next.done": np.array([0, 0, 0, 0, 1], bool)},
         "episode 0 ends with 'next.done' False, which next.truncated contradict"),
    ],
)  # fmt: skip
def test_flags_of_an_end(
    further: dict[str, Any], message: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.lerobot(tmp_path / "x", **further)
    with pytest.raises(TrimtabError, match=message):
        load(tmp_path / "x")


def test_two_point_one_has_its_tables_in_json(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    foreign.lerobot(path, "v2.1")
    rows = [{"episode_index": 0, "length": 3}, {"episode_index": 1, "length": 2}]
    for lines, message in (
        (rows, ""),
        (rows[:1], "episode 1 has frames and is not listed"),
        ([rows[0], rows[1] | {"length": 4}], "episode 1 has 'length' 4, its frames say 2"),
        ([rows[0], {"episode_index": 1}], "line 2: without whole numbers episode_index, length"),
    ):
        text = "\n".join(json.dumps(line | {"tasks": ["\u2028"]}) for line in lines)
        (path / "meta/episodes.jsonl").write_text(text + "\n")
        if not message:
            assert load(path).num_steps == 5
            continue
        with pytest.raises(TrimtabError, match=message):
            load(path)


def test_discrete_actions_are_named(foreign: Any, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x", action=np.zeros((5, 2), np.int64))
    with pytest.raises(TrimtabError, match="key 'action': discrete actions"):
        load(tmp_path / "x")


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16", "utf-32"])
def test_a_byte_order_mark_says_how_a_text_is_read(
    encoding: str, foreign: Any, tmp_path: Path
) -> None:
    foreign.lerobot(tmp_path / "x")
    place = tmp_path / "x/meta/info.json"
    place.write_text(place.read_text(), encoding=encoding)
    assert recognise(tmp_path / "x").load(tmp_path / "x").num_steps == 5


def both(*changes: Change) -> Change:
    return lambda folder: [change(folder) for change in changes] and None


ACCEPTED: list[Change] = [
    column("index", [10, 11, 12, 20, 21]),  # of a merged folder
    column("frame_index", None),
    column("timestamp", np.array([7, 7.10005, 7.2, 0, 0.1], np.float32)),
    column("observation.state", None),
    feature("action", names=["actions"]),  # a name of the axis
    feature("action", names={"motors": ["left", "right"]}),
    feature("action", names={"left": 0, "right": 1}),
    feature("language", dtype="string", shape=[1]),
    feature("odd", dtype="bfloat16", shape=[4]),
    feature("action", fps=10),
    info(total_frames=None, total_episodes=None),
    info(codebase_version="3.0"),
    info(fps=10.0),
    episodes(),
    episodes(**{"data/chunk_index": [0, 0], "data/file_index": [0, 1]}),
    feature("next.reward", shape=[]),
]


@pytest.mark.parametrize("place", range(len(ACCEPTED)))
def test_what_others_write_is_read(place: int, foreign: Any, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    ACCEPTED[place](tmp_path / "x")
    for name in ("frame_index", "observation.state"):
        if name not in pq.read_schema(next((tmp_path / "x").rglob("data/*/*.parquet"))).names:
            document = json.loads((tmp_path / "x/meta/info.json").read_text())
            del document["features"][name]
            (tmp_path / "x/meta/info.json").write_text(json.dumps(document))
    dataset = load(tmp_path / "x")
    assert [len(episode) for episode in dataset.episodes] == [3, 2]
    assert noted(dataset.recipe) == [] and dataset.control_rate == 10


def test_names_by_index_are_in_the_order_of_their_indices(foreign: Any, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    for names, read in (
        ({"x": 1, "y": 0}, ["y", "x"]),
        ({"x": 0, "y": 1}, ["x", "y"]),
        ({"x": 1, "y": 2}, ["action.0", "action.1"]),
    ):
        feature("action", names=names)(tmp_path / "x")
        assert load(tmp_path / "x").recipe["names"]["action"] == read


TIMES: list[tuple[Change, str, str]] = [
    (column("timestamp", np.array([0, 0.05, 0.1, 0, 0.05], np.float32)), "control-rate", "20 a se"),
    (column("timestamp", np.array([0, 0.1, 0.3, 0, 0.1], np.float32)), "control-rate", "0.2 s aft"),
    (column("timestamp", np.array([0, 0.2, 0.1, 0, 0.1], np.float32)), "control-rate", "0.2 s aft"),
    (column("timestamp", np.full(5, np.nan, np.float32)), "control-rate", "times of 5 of 5 rows"),
    (info(fps=11), "control-rate", "info.json 11"),
    (feature("action", fps=30), "control-rate", "30 frames a second, but 'fps' is 10"),
    (feature("observation.images.top", info={"video.fps": 15}), "control-rate", "15 frames"),
    (both(column("frame_index", [0, 1, 3, 0, 1]), column("index", [0, 1, 3, 4, 5]),
          column("timestamp", np.array([0, 0.1, 0.3, 0, 0.1], np.float32))),
     "missing-frames", "frames before frame_index 3 are missing"),
    (both(column("frame_index", [4, 5, 6, 0, 1]),
          column("timestamp", np.array([0.4, 0.5, 0.6, 0, 0.1], np.float32))),
     "missing-frames", "frames before frame_index 4"),
]  # fmt: skip


@pytest.mark.parametrize("change, code, message", TIMES)
def test_times_that_contradict(
    change: Change, code: str, message: str, foreign: Any, tmp_path: Path
) -> None:
    path = tmp_path / "x"
    foreign.lerobot(path)
    change(path)
    for dataset in (load(path), streaming.load(path, tmp_path / "streams")):
        (finding,) = [one for one in check(dataset) if one.level == "error"]
        assert finding.code == code and message in finding.message
    told = load(path, control_rate=12.5)
    assert (told.control_rate, noted(told.recipe)) == (12.5, [])
    assert told.content_hash == dataset.content_hash


def test_a_rate_that_the_file_does_not_say(foreign: Any, tmp_path: Path) -> None:
    foreign.lerobot(tmp_path / "x")
    info(fps=None)(tmp_path / "x")
    assert load(tmp_path / "x", control_rate=10.0).control_rate == 10.0


@pytest.mark.parametrize("name", [b"gr\xf6sse", b"\xff", b"a\x80/\xfe"])
def test_a_folder_whose_name_is_no_utf8(
    name: bytes, foreign: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("CRITICAL", "trimtab")  # pytest-xdist cannot send such a name
    format = get_format("lerobot")
    foreign.lerobot(tmp_path / "x")
    place = tmp_path / os.fsdecode(name)
    place.parent.mkdir(exist_ok=True)
    (tmp_path / "x").rename(place)
    dataset = recognise(place).load(place)
    assert format.save is not None
    format.save(dataset, place.with_name(place.name + "-again"))
    assert format.load(place.with_name(place.name + "-again")).content_hash == dataset.content_hash


def test_our_own_folder_takes_no_rate(make_dataset: Any, tmp_path: Path) -> None:
    format = get_format("lerobot")
    assert format.save is not None
    format.save(make_dataset(), tmp_path / "x")
    with pytest.raises(TrimtabError, match="control_rate= says how others' data is read"):
        load(tmp_path / "x", control_rate=10.0)


def test_splits_are_masks(foreign: Any, tmp_path: Path) -> None:
    path = tmp_path / "x"
    foreign.lerobot(path)
    info(splits={"train": "0:1", "valid": "1:2", "old": "1:7", "all": "80%", "gone": "5:7"})(path)
    dataset = load(path)
    assert dataset.recipe["masks"] == {"train": [0], "valid": [1], "old": [1]}
    assert [f.where for f in noted(dataset.recipe)] == [
        f"info.json, split '{name}'" for name in ("old", "all", "gone")
    ]
    assert {f.code for f in check(dataset)} >= {"stale-mask"}
    assert [len(episode) for episode in load(path, mask="valid").episodes] == [2]
    with pytest.raises(TrimtabError, match="no mask 'all' of its episodes; there are train, valid"):
        load(path, mask="all")
