"""The committed comparison with peers: what its rows say, and those checks anew whose peer is here.

Peers that are in the lock answer in this process: Minari, diffusers and Stable-Baselines3. The
others need environments of their own, which ``benchmarks/results/peers/peers.py`` makes.
"""

from __future__ import annotations

import ast
import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np
import pytest

Row = dict[str, Any]


@pytest.fixture(scope="module")
def peers(folder: Path) -> Iterator[ModuleType]:
    """The script, with its folders on the path of imports as when it runs."""
    with pytest.MonkeyPatch.context() as patch:
        patch.syspath_prepend(folder / "peer_sides")
        patch.syspath_prepend(folder)
        yield importlib.import_module("peers")


@pytest.fixture(scope="module")
def folder(root: Path) -> Path:
    return root / "benchmarks" / "results" / "peers"


@pytest.fixture(scope="module")
def rows(folder: Path) -> list[Row]:
    found: list[Row] = json.loads((folder / "rows.json").read_text(encoding="utf-8"))
    return found


def named(rows: list[Row], peer: str) -> dict[tuple[str, str], Row]:
    return {(row["part"], row["check"]): row for row in rows if row["peer"] == peer}


def test_every_peer_was_compared_and_every_check_holds(peers: ModuleType, rows: list[Row]) -> None:
    assert {row["peer"] for row in rows} == {peer.name for peer in peers.PEERS}
    for row in rows:
        assert row["holds"] is True, row
        assert row["note"] == "", row
        if isinstance(row["ours"], str):
            assert row["ours"] == row["theirs"]
        elif row["deviation"]:
            assert row["difference"] > row["tolerance"] > 0
        else:
            assert row["numbers"] > 0
            assert 0 <= row["difference"] <= row["tolerance"]
            assert abs(row["ours"] - row["theirs"]) <= row["tolerance"] + 1e-15


# Where the deviations of a part are listed.
LISTED = {
    "fql": "finetuning/fql.py",
    "qc-fql": "finetuning/fql.py",
    "qc": "selection/qc.py",
    "nft": "finetuning/nft.py",
    "ancestral": "finetuning/dppo.py",
    "implicit": "finetuning/dppo.py",
    "time limits": "finetuning/dppo.py",
    "reinflow": "finetuning/reinflow.py",
    "edac": "offline/edac.py",
    "sac-n": "offline/edac.py",
    "fpo": "on_policy/fpo.py",
    "reppo": "on_policy/reppo.py",
    "flash_sac": "off_policy/flash_sac.py",
    "simba_v2": "off_policy/simba_v2.py",
}


def test_every_deviation_is_listed_and_all_else_agrees(rows: list[Row], root: Path) -> None:
    deviating = [row for row in rows if row["deviation"]]
    assert {row["part"].partition(",")[0].partition(" of ")[0] for row in deviating} == {*LISTED}
    for row in deviating:
        file = LISTED[row["part"].partition(",")[0].partition(" of ")[0]]
        text = (root / "algorithms" / file).read_text(encoding="utf-8")
        listed = " ".join((ast.get_docstring(ast.parse(text)) or "").split())
        assert row["deviation"] in listed, row


def test_the_readme_says_what_the_rows_say(rows: list[Row], folder: Path, root: Path) -> None:
    text = (folder / "README.md").read_text(encoding="utf-8")
    papers = {row["peer"] for row in rows if row["deviation"]}
    agreeing = [row for row in rows if row["peer"] in papers and not row["deviation"]]
    largest = max(row["difference"] for row in agreeing)
    said = f"In the {len(agreeing)} rows of agreement of these {len(papers)},"
    assert f"{said} the largest difference is {largest:.1e}." in text
    table = text.partition("| largest difference |")[2].partition("\n\n")[0]
    told = {
        float(number) for line in table.splitlines()[2:]
        for number in line.split("|")[-2].split(" to ")
    }  # fmt: skip
    found = {float(f"{row['difference']:.2g}") for row in rows if row["deviation"]}
    # A range tells its ends alone, and two rows of a method may be told as the larger.
    assert told <= found and {max(found), min(found)} <= told
    page = (root / "docs" / "online-methods.md").read_text(encoding="utf-8")
    assert f"has {len(rows)} checks, and all of them pass" in page


def test_the_table_is_that_of_the_rows(peers: ModuleType, rows: list[Row], folder: Path) -> None:
    assert (folder / "peers.md").read_text(encoding="utf-8") == peers.markdown(rows)


def test_the_versions_are_those_that_the_script_asks_for(
    peers: ModuleType, rows: list[Row]
) -> None:
    for peer in peers.PEERS:
        wanted = [*peer.requirements, *peer.bare]
        exact = [w for w in wanted if w.partition("[")[0].partition("=")[0] == peer.package]
        for row in rows:
            if row["peer"] == peer.name and exact and not peer.needs:
                assert exact == [f"{exact[0].partition('==')[0]}=={row['version']}"]
        assert all(
            "torch" not in w or w.startswith(("torch==2.13.0", "torchvision")) for w in wanted
        )


# Which module answers for a peer; each is imported by its name, as the script runs it.
HERE = {
    "Minari": "with_minari",
    "Minari beside Trimtab": "with_minari",
    "diffusers": "with_diffusers",
    "Stable-Baselines3": "with_sb3",
}


@pytest.mark.parametrize("name", HERE)
def test_the_checks_hold_here_too(
    peers: ModuleType, rows: list[Row], tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str
) -> None:
    monkeypatch.setenv("MINARI_DATASETS_PATH", "")  # which its script sets
    (peer,) = (peer for peer in peers.PEERS if peer.name == name)
    assert peer.side == f"{HERE[name]}.py"
    checks = peer.ask(tmp_path, peers.WORDS)
    side, exchange = importlib.import_module(HERE[name]), importlib.import_module("exchange")
    exchange.answer_all(tmp_path, side.answer, peer.package)
    mine = peers.rows_of(peer, checks, tmp_path, peers.WORDS)
    wrong = [row for row in mine if not row["holds"]]
    assert not wrong, wrong
    committed = named(rows, name)
    assert named(mine, name).keys() == committed.keys()
    for key, row in named(mine, name).items():
        assert row["numbers"] == committed[key]["numbers"], key


def test_an_update_moves_what_is_compared(peers: ModuleType, tmp_path: Path) -> None:
    (peer,) = (peer for peer in peers.PEERS if peer.name == "Stable-Baselines3")
    for check in peer.ask(tmp_path, peers.WORDS):
        if check.name in ("advantages", "returns"):
            continue
        with np.load(tmp_path / check.part / "in.npz", allow_pickle=False) as given:
            for name, array in check.ours.items():
                assert np.abs(given[f"start {name}"] - array).max() > 1e-5, (check.part, name)


@pytest.mark.parametrize(
    "name",
    [
        "FQL", "QC", "DiffusionNFT", "DPPO", "ReinFlow", "EDAC",
        "FPO", "REPPO", "FlashSAC", "SimbaV2",
    ],
)  # fmt: skip
def test_our_side_of_a_paper_is_still_what_was_compared(
    peers: ModuleType, rows: list[Row], tmp_path: Path, name: str
) -> None:
    (peer,) = (peer for peer in peers.PEERS if peer.name == name)
    checks = peer.ask(tmp_path, {**peers.WORDS, peer.needs: str(tmp_path)})  # it runs ours alone
    committed = named(rows, name)
    assert {(check.part, check.name) for check in checks} == committed.keys()
    for check in checks:
        mine, row = peers.compared(check, {}, ""), committed[check.part, check.name]
        assert mine["numbers"] == row["numbers"], row
        assert mine["ours"] == pytest.approx(row["ours"], rel=1e-6, abs=1e-9), row
        with np.load(tmp_path / check.part / "in.npz", allow_pickle=False) as given:
            moved = {
                weight: np.abs(np.squeeze(given[f"start {weight}"]) - np.squeeze(array)).max()
                for weight, array in check.ours.items()
                if f"start {weight}" in given
            } if isinstance(check.ours, dict) else {}  # fmt: skip
        assert all(distance > 1e-5 for distance in moved.values()), (check.part, moved)


def test_a_difference_is_noticed(peers: ModuleType) -> None:
    ours = np.arange(4.0)
    check = peers.Check("part", "name", "what", ours, 1e-6)
    assert peers.compared(check, {"name": ours + 5e-7}, "")["holds"] is True
    far = peers.compared(check, {"name": ours + 2e-6}, "")
    assert far["holds"] is False and far["difference"] == pytest.approx(2e-6)
    for theirs in (ours[:3], np.where(ours == 2, np.nan, ours)):
        assert peers.compared(check, {"name": theirs}, "")["holds"] is False
    listed = peers.Check("part", "name", "what", ours, 1e-6, "a deviation")
    assert peers.compared(listed, {"name": ours + 5e-7}, "")["holds"] is False
    assert peers.compared(listed, {"name": ours + 2e-6}, "")["holds"] is True
    missing = peers.compared(check, {}, "KeyError: name")
    assert (missing["holds"], missing["note"]) == (False, "KeyError: name")
    several = peers.Check("part", "name", "what", {"a": ours, "b": ours}, 0.0)
    assert peers.compared(several, {"a": ours, "b": ours}, "")["holds"] is True
    assert peers.compared(several, {"a": ours, "b": ours + 1}, "")["holds"] is False
    text = peers.Check("part", "name", "what", "PPO")
    assert peers.compared(text, {"name": "PPO"}, "")["holds"] is True
    assert peers.compared(text, {"name": "unknown"}, "")["holds"] is False
    assert peers.compared(text, {}, "an error")["note"] == "an error"


def test_an_error_of_a_peer_is_its_answer(peers: ModuleType, tmp_path: Path) -> None:
    exchange = importlib.import_module("exchange")
    (tmp_path / "part").mkdir()

    def answer(part: Path) -> Any:
        raise KeyError("demo_0")

    exchange.answer_all(tmp_path, answer, "numpy")
    told = json.loads((tmp_path / "part" / "theirs.json").read_text(encoding="utf-8"))
    assert told == {"texts": {}, "error": "KeyError: 'demo_0'"}


def test_a_peer_that_was_not_compared_is_told_as_such(peers: ModuleType) -> None:
    (corl,) = (peer for peer in peers.PEERS if peer.name == "CORL")
    (row,) = peers.comparison(corl, peers.WORDS)
    assert row["holds"] is None and "corl=<folder of a checkout>" in row["note"]
    assert "not compared" in peers.markdown([row])
    assert "0 of 0 checks hold" in peers.markdown([row])


@pytest.mark.parametrize("word", ["nonsense", "only=mujoco", "ouput=x", "corl=/no/such/folder"])
def test_wrong_words_are_one_line(
    peers: ModuleType, capsys: pytest.CaptureFixture[str], word: str
) -> None:
    assert peers.main([word]) == 2
    said = capsys.readouterr().err
    assert said.count("\n") == 1 and word in said
