"""A policy is evaluated with an input that its user chooses: the weight of CFGRL's guidance."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import trimtab
from trimtab.benchmarks.cli.main import main
from trimtab.benchmarks.training.rows import collect_episodes
from trimtab.errors import TrimtabError

TASK = ["env=gym/Hopper-v5", "env_options.horizon=50", "dataset=hopper_medium"]
DATA = ["dataset.steps=400", "dataset.env_options.horizon=50"]
METHOD = ["algorithm=cfgrl", "algorithm.hidden=[16]", "algorithm.batch_size=8", "offline_steps=50"]


def call(*words: str) -> int:
    with pytest.raises(SystemExit) as ended:
        main(list(words))
    assert isinstance(ended.value.code, int)
    return ended.value.code


@pytest.fixture(scope="module")
def run(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs")
    assert call("train", *TASK, *DATA, *METHOD, "eval_episodes=2", f"out={out}") == 0
    (result,) = out.rglob("result.json")
    return result.parent


def returns(run: Path, capfd: pytest.CaptureFixture[str], *words: str) -> list[float]:
    """Return what the episodes of an evaluation earn."""
    capfd.readouterr()
    assert call("evaluate", f"policy={run}", "episodes=4", "format=json", *words) == 0
    answer = json.loads(capfd.readouterr().out)
    default = not words or "inputs={guidance: 1" in words[0]
    assert answer.get("inputs") == (None if default else {"guidance": 20.0})
    return [episode["return"] for episode in answer["episodes"]]


def test_a_weight_of_guidance_is_chosen_when_it_acts(
    run: Path, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    default = returns(run, capfd)
    assert returns(run, capfd, "inputs={guidance: 1}") == default  # algorithm.guidance's own
    strong = returns(run, capfd, "inputs={guidance: 20}")
    assert returns(run, capfd, "inputs={guidance: 20}") == strong
    assert strong != default
    scores = trimtab.evaluate(run, episodes=4, inputs={"guidance": 20})
    assert [one.return_ for one in scores.episodes] == strong

    # In a table it is a policy of its own, however its inputs are written; a default is none.
    hashes = []
    for number, value in enumerate(["20", "1", "2e1", "[20.0]", "1.0"]):
        out = tmp_path / ("table" if number < 2 else "again") / str(number)
        returns(run, capfd, f"inputs={{guidance: {value}}}", f"out={out}")
        hashes += {*collect_episodes(out)["config_hash"].to_pylist()}
    strong_one, default_one = hashes[:2]
    assert strong_one != default_one
    assert hashes[2:] == [strong_one, strong_one, default_one]
    assert call("leaderboard", f"runs={tmp_path / 'table'}", f"out={tmp_path / 'board'}") == 0
    board = (tmp_path / "board" / "leaderboard.csv").read_text()
    assert "guidance=20" in board and len(board.splitlines()) == 3


@pytest.mark.parametrize(
    ("words", "told"),
    [
        ("inputs={guidanc: 3}", "the policy has no input 'guidanc'; it has guidance"),
        ("inputs={guidance: .nan}", "input guidance: must be finite"),
        ("inputs={guidance: [1, 2]}", "input guidance: give a number"),
        ("inputs={guidance: three}", "input guidance: give a number"),
        ("inputs={guidance: !!binary MTI=}", "input guidance: give a number"),
        (f"inputs={{guidance: 1{'0' * 400}}}", "input guidance: give a number"),
        ("inputs=3", "evaluate: inputs=3: must be like {guidance: 3}"),
        ("inputs={1: 3}", "must be like {guidance: 3}"),
        ("inputs={a", "evaluate: inputs={a: not YAML"),
    ],
)
def test_an_input_that_does_not_fit_is_one_line(
    words: str, told: str, run: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    capfd.readouterr()
    assert call("evaluate", f"policy={run}", words) == 2
    shown = capfd.readouterr()
    assert told in shown.err and len(shown.err.splitlines()) == 1 and not shown.out


def test_what_is_no_mapping_is_refused_from_python(run: Path) -> None:
    with pytest.raises(TrimtabError, match="inputs is a mapping"):
        trimtab.evaluate(run, inputs=3)  # type: ignore[arg-type]
