"""What is said about a method is what its own docstring says."""

from __future__ import annotations

import importlib
import re
import sys
import types
from pathlib import Path

import pytest
import yaml

from trimtab.benchmarks.cli.commands.listing import LISTINGS
from trimtab.benchmarks.training.settings import groups
from trimtab.benchmarks.training.settings.catalog import (
    FAMILIES,
    NO_PAPER,
    adaptations,
    describe_algorithm,
    family_of,
    is_faithful,
)
from trimtab.benchmarks.training.settings.config import compose_run
from trimtab.benchmarks.training.settings.groups import heading
from trimtab.types import TrimtabError

ROOT = Path(__file__).resolve().parents[4]
FILES = sorted((ROOT / "conf" / "algorithm").glob("*.yaml"))


def described(monkeypatch: pytest.MonkeyPatch, docstring: str | None) -> tuple[str, str]:
    """Describe a class of a module that has this docstring."""
    module = types.ModuleType("described", docstring)
    monkeypatch.setitem(sys.modules, "described", module)
    return describe_algorithm("described.Method")


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("algorithm: [1", r"conf/algorithm/bc.yaml: is no YAML \(line 2: .*\); correct it"),
        ("algorithm:\n", "algorithm=bc: its file must name a class, as _target_ below algorithm"),
        ("", "algorithm=bc: its file must name a class"),
        ("- 1", "conf/algorithm/bc.yaml: must be a mapping"),
        ("3", "conf/algorithm/bc.yaml: must be a mapping"),
        ("null", "algorithm=bc: its file must "),
        ("algorithm: &a {b: *a}", "conf/algorithm/bc.yaml: refers to itself; write it out"),
        ("algorithm: {learning_rate: 1.0}", "algorithm=bc: its file must name a class"),
        ("algorithm: {_target_: no.Such}", "_target_=no.Such: cannot be imported"),
    ],
)
def test_a_broken_file_of_a_method_is_named(
    text: str, expected: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    as_it_is = groups._bytes
    broken = {"algorithm/bc.yaml": f"# Broken.\n{text}".encode()}
    monkeypatch.setattr(groups, "_bytes", lambda name: broken.get(name) or as_it_is(name))
    words = ["env=gym/Hopper-v5", "algorithm=bc", "algorithm.beta=1"]
    for call in (lambda: LISTINGS["algorithm"]("algorithm", ""), lambda: compose_run(words)):
        with pytest.raises(TrimtabError, match=expected) as error:
            call()
        assert "\n" not in str(error.value)


@pytest.mark.parametrize("file", FILES, ids=[file.stem for file in FILES])
def test_every_method_names_its_paper(file: Path) -> None:
    target = yaml.safe_load(file.read_text(encoding="utf-8"))["algorithm"]["_target_"]
    summary, paper = describe_algorithm(target)
    assert 10 < len(summary) < 100 and not summary.endswith(".")
    assert re.fullmatch(r"[A-Z].{10,} \(arXiv \d{4}\.\d{4,5}\)", paper), paper


def test_title_and_number_may_be_wrapped(monkeypatch: pytest.MonkeyPatch) -> None:
    text = """A method.

    Somebody et al., "A Long
    Title" (arXiv
    2506.15799), and "Another" (arXiv 1812.05905).
    """
    assert described(monkeypatch, text) == ("A method", "A Long Title (arXiv 2506.15799)")


@pytest.mark.parametrize(
    "text", [None, "A method.", 'A method of "Title".', "A method (arXiv 2506.15799)."]
)
def test_a_method_without_a_paper_is_listed_without(
    monkeypatch: pytest.MonkeyPatch, text: str | None
) -> None:
    assert described(monkeypatch, text)[1] == NO_PAPER


def test_an_adaptation_says_so_in_the_list_and_in_its_docstring() -> None:
    listed = {row["algorithm"]: row["faithful"] for row in LISTINGS["algorithm"]("algorithm", "")}
    assert listed["dropout_ppo"] == listed["mdpo_sac"] == listed["annealed_sac"] == "no"
    assert listed["ppo"] == listed["mdpo"] == listed["sac"] == "yes"
    for file in FILES:
        target = yaml.safe_load(file.read_text(encoding="utf-8"))["algorithm"]["_target_"]
        module = importlib.import_module(target.rpartition(".")[0])
        explained = "An adaptation (``faithful`` is False)" in (module.__doc__ or "")
        assert is_faithful(target) == (not explained) == (listed[file.stem] == "yes"), target


def test_a_method_of_one_s_own_that_names_no_paper_adapts_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "adopted", {})
    monkeypatch.syspath_prepend(str(tmp_path))
    (tmp_path / "unpublished.py").write_text(
        "from trimtab.algorithms.offline.bc import BehaviorCloning\n\n\n"
        "class Mine(BehaviorCloning):\n    faithful = False\n"
    )
    for name, comment in (("nameless", "Mine."), ("named", 'As "A Title" (arXiv 2506.15799).')):
        text = f"# @package _global_\n# {comment}\nalgorithm: {{_target_: unpublished.Mine}}\n"
        (tmp_path / f"{name}.yaml").write_text(text)
        groups.name_in_group("algorithm", str(tmp_path / f"{name}.yaml"))
    found = adaptations()
    assert "named" in found and "nameless" not in found and "mdpo_sac" in found


@pytest.mark.parametrize("encoding", ["utf-8", "utf-8-sig", "utf-16", "utf-32"])
def test_files_of_users_are_read_with_a_byte_order_mark_and_when_they_change(
    encoding: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(groups, "adopted", {})
    plugin = types.SimpleNamespace(folder=tmp_path)
    monkeypatch.setattr(groups, "plugins", lambda: [plugin])
    folder = tmp_path / "conf" / "algorithm"
    folder.mkdir(parents=True)
    (folder / "hidden.yaml").symlink_to("nowhere")
    text = (
        "# @package _global_\n# As it is told.\nalgorithm:\n"
        "  _target_: trimtab.algorithms.off_policy.sac.SAC\n  tau: 0.5\n"
    )
    for file, word in ((folder / "mine.yaml", "mine"), (tmp_path / "own.yaml", None)):
        for tau in ("0.5", "0.25"):  # changed within one process, too
            file.write_text(text.replace("0.5", tau), encoding=encoding)
            config = compose_run(["env=gym/Hopper-v5", f"algorithm={word or file}"])
            assert config["algorithm"]["tau"] == float(tau)
    assert {"mine", "own"} <= {row["algorithm"] for row in LISTINGS["algorithm"]("algorithm", "")}
    assert heading("algorithm", "mine") == heading("algorithm", "own") == "As it is told."


def test_methods_are_listed_by_family() -> None:
    families = [row["family"] for row in LISTINGS["algorithm"]("algorithm", "")]
    assert set(families) <= set(FAMILIES)  # none of ours is anybody's own
    assert families == sorted(families, key=list(FAMILIES).index)
    by_name = {row["algorithm"]: row["family"] for row in LISTINGS["algorithm"]("algorithm", "")}
    assert (by_name["dsrl_na"], by_name["rlpd"]) == ("steering", "off_policy")
    assert family_of("my_package.methods.Mine") == "own"


def test_every_folder_of_methods_says_what_its_methods_do() -> None:
    folders = {path.name for path in (ROOT / "algorithms").iterdir() if path.is_dir()}
    assert {name for name in folders if not name.startswith("_")} - {"common", "generation"} == set(
        FAMILIES
    )  # common has no methods, and generation what makes their data
