"""Parts of an evaluation are those of the whole, bit for bit; one too many or too few is told."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.judging import BundleJudge
from trimtab.benchmarks.training.rows import collect_episodes

EPISODES, PARTS = 30, 2  # three rounds of ten side by side: a part has one of them, the other two


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


def evaluate(tiny: Any, out: Path, *words: str) -> int:
    chosen = [f"policy={tiny.base}", f"episodes={EPISODES}", "seed=7"]
    return call("evaluate", *chosen, f"out={out}", *words)


def rows(place: Path) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = collect_episodes(place).drop_columns(["seconds"]).to_pylist()
    return found


@pytest.fixture(scope="module")
def whole(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All episodes, judged at once."""
    out = tmp_path_factory.mktemp("whole")
    assert evaluate(tiny, out) == 0
    return out


@pytest.fixture(scope="module")
def judged(tiny: Any, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The same in parts, as two machines would do it: in folders of their own."""
    out = tmp_path_factory.mktemp("parts")
    for number in range(1, PARTS + 1):
        assert evaluate(tiny, out / f"machine{number}", f"shard={number}/{PARTS}") == 0
    return out


@pytest.fixture
def parts(judged: Path, tmp_path: Path) -> Path:
    """A copy of the parts."""
    return Path(shutil.copytree(judged, tmp_path / "parts"))


def test_parts_are_the_whole_bit_for_bit(whole: Path, parts: Path, tmp_path: Path) -> None:
    assert rows(parts) == rows(whole)
    assert len(rows(whole)) == EPISODES
    assert [row["eval_seed"] for row in rows(whole)] == list(range(7, 7 + EPISODES))
    # The first part has the first round of every environment, the second one the two others.
    first = [row["eval_episode"] for row in rows(parts / "machine1")]
    assert first == [3 * environment for environment in range(10)]
    tables = []
    for name, place in (("of-whole", whole), ("of-parts", parts)):
        assert call("leaderboard", f"runs={place}", f"out={tmp_path / name}") == 0
        tables.append((tmp_path / name / "leaderboard.csv").read_bytes())
    assert tables[0] == tables[1]


def told(place: Path, capfd: pytest.CaptureFixture[str]) -> str:
    assert call("leaderboard", f"runs={place}") == 2
    shown = capfd.readouterr().err
    assert shown.count("\n") == 1, shown
    return shown


def test_a_part_that_lacks_is_told_with_the_words_that_make_it(
    parts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.rmtree(parts / "machine2")
    shown = told(parts, capfd)
    assert "the part 2/2 of the evaluation of " in shown and shown.endswith("shard=2/2\n")
    assert "is missing; carry it out" in shown


def test_parts_of_evaluations_with_other_seeds_are_told_apart(
    tiny: Any, parts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (other,) = parts.glob("machine2/shard-*/shard.json")
    note = json.loads(other.read_text())
    note["asked"]["seed"] = 5
    other.write_text(json.dumps({**note, "evaluation": "other"}))
    shown = told(parts, capfd)
    assert (
        f"is missing; {other.parent} is part 2/2 of another one (seed=5 against 7); carry" in shown
    )
    monkeypatch.setattr(BundleJudge, "judge", None)  # it is told before an episode is played
    assert evaluate(tiny, other.parents[1], "shard=1/2") == 2
    shown = capfd.readouterr().err
    assert "shard-2-of-2 there is a part of another evaluation (seed=5 against 7)" in shown
    assert [path.name for path in other.parents[1].iterdir()] == ["shard-2-of-2"]


def test_a_part_that_is_there_twice_is_told(
    tiny: Any, parts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    shutil.copytree(parts / "machine1", parts / "machine3")
    shown = told(parts, capfd)
    assert "are the same part, 1/2; remove one" in shown
    assert "machine1" in shown and "machine3" in shown


def test_two_divisions_are_not_mixed(
    tiny: Any, parts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    assert evaluate(tiny, parts / "machine3", "shard=3/3") == 0
    capfd.readouterr()
    assert "one of 2 parts" in (shown := told(parts, capfd)) and "one of 3 parts" in shown


def test_rows_that_are_not_those_of_the_part_are_told(
    parts: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    first, second = (
        next(parts.glob(f"machine{n}/shard-*/episodes.parquet")) for n in range(1, PARTS + 1)
    )
    shutil.copy(first, second)
    assert "episode 0 is there 2 times" in told(parts, capfd)


def test_a_part_is_judged_anew_in_its_place_and_nowhere_else(
    tiny: Any, parts: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    before = rows(parts)
    assert evaluate(tiny, parts / "machine1", "shard=1/2") == 0
    assert rows(parts) == before
    (tmp_path / "other" / "shard-1-of-2").mkdir(parents=True)
    assert evaluate(tiny, tmp_path / "other", "shard=1/2") == 2
    assert "something is there that this command has not made" in capfd.readouterr().err


def test_rows_of_another_evaluation_are_not_replaced(
    tiny: Any, parts: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    before = rows(parts)
    monkeypatch.setattr(BundleJudge, "judge", None)  # it is told before an episode is played
    capfd.readouterr()
    assert evaluate(tiny, parts / "machine1", "shard=1/2", "backend=onnx") == 2
    shown = capfd.readouterr().err
    assert "the rows of another evaluation are there" in shown and shown.count("\n") == 1
    assert rows(parts) == before


def test_a_part_alone_is_no_evaluation(parts: Path, capfd: pytest.CaptureFixture[str]) -> None:
    (file,) = parts.glob("machine1/shard-*/episodes.parquet")
    assert "is part 1/2 of an evaluation; name the folder that has all" in told(file, capfd)


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["shard=0/2"], "shard=0/2: must be like 2/4"),
        (["shard=3/2"], "shard=3/2: must be like 2/4"),
        (["shard=half"], "shard=half: must be like 2/4"),
        (["shard=1/2", "out="], "add out=… for the rows of the part"),
        (["shard=1/2", "video=true"], "a part has no video"),
        (["shard=1/4"], "30 episodes are 3 rounds of 10 side by side, which 4 parts cannot share"),
    ],
)
def test_wrong_parts_are_told(
    words: list[str], said: str, tiny: Any, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    chosen = {"out": f"out={tmp_path / 'out'}"} | {word.partition("=")[0]: word for word in words}
    base = [f"policy={tiny.base}", f"episodes={EPISODES}"]
    given = [word for word in chosen.values() if not word.endswith("=")]
    assert call("evaluate", *base, *given) == 2
    shown = capfd.readouterr().err
    assert said in shown and shown.count("\n") == 1, shown
    assert not (tmp_path / "out").exists()
