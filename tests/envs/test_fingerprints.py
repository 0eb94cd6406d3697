"""Physics that does not drift: each environment, in a process of its own, against a table.

One process a family makes each of its environments once, in the opposite order of the contract
tests. That its three seeded episodes come out as the table says they did elsewhere is also what
shows that an environment works in another process.
"""

import functools
import importlib.util
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

from trimtab.envs.registry import list_envs, list_tasks, make


def _script() -> ModuleType:
    path = Path(__file__).resolve().parents[2] / "scripts" / "fingerprints.py"
    spec = importlib.util.spec_from_file_location("fingerprints", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


SCRIPT = _script()
TABLE = SCRIPT.read_table()


def _tested() -> list[str]:
    """All ids; of a family's tasks that are compiled, for half a minute each, only the first."""
    compiled: dict[str, str] = {}
    for id, task in list_tasks().items():
        if "mjx" in task.tags:
            compiled.setdefault(id.split("/")[0], id)
    return [
        id for id, task in list_tasks().items() if "mjx" not in task.tags or id in compiled.values()
    ]


@functools.cache
def _measured(family: str) -> dict[str, dict[str, Any]]:
    ids = [id for id in _tested() if id.startswith(f"{family}/")]
    rows: dict[str, dict[str, Any]] = SCRIPT.measure_elsewhere(ids[::-1])
    return rows


@pytest.mark.parametrize("id", _tested())
def test_physics_is_as_expected_in_another_process(id: str) -> None:
    family = id.split("/")[0]
    row = _measured(family)[id]
    wrong = SCRIPT.complaint(TABLE, row, SCRIPT.installed_versions(family))
    assert not wrong, wrong


@pytest.mark.parametrize("id", _tested())
def test_closing_leaves_nothing_open(id: str) -> None:
    row = _measured(id.split("/")[0])[id]
    assert "error" not in row, row
    assert {name: count for name, count in row["left_open"].items() if count > 0} == {}


def test_the_table_is_of_the_tasks_there_are() -> None:
    assert TABLE["fingerprints"].keys() == set(list_envs())
    assert TABLE["settings"].keys() == set(list_envs())
    assert TABLE["versions"].keys() == {id.split("/")[0] for id in list_envs()}
    values = list(TABLE["fingerprints"].values())
    assert len(set(values)) == len(values)
    for id, entry in TABLE["unsteady"].items():
        assert TABLE["fingerprints"][id] in entry["fingerprints"]
    lines = (Path(__file__).parents[2] / "requirements.lock").read_text(encoding="utf-8").split()
    pins = {_canonical(name): version for name, _, version in (x.partition("==") for x in lines)}
    for versions in TABLE["versions"].values():
        assert versions == {name: pins[_canonical(name)] for name in versions}


def _canonical(name: str) -> str:
    return re.sub(r"[-_.]+", "-", name).lower()


def test_what_is_wrong_is_told() -> None:
    versions = {"mujoco": "3.3.0"}
    means = {"reward": 0.5, "observation_change": 0.001}
    table = {
        "versions": {"gym": versions},
        "fingerprints": {"gym/A": "aaaa", "gym/B": "bbbb", "gym/U": "uuuu"},
        "settings": {id: {"horizon": 1000, "frame_skip": 5} for id in ("gym/A", "gym/B", "gym/U")},
        "unsteady": {"gym/U": {"fingerprints": ["uuuu", "vvvv"], "means": means}},
    }
    as_before = {"settings": {"horizon": 1000, "frame_skip": 5}}
    good: dict[str, Any] = {"id": "gym/A", "fingerprint": "aaaa", **as_before}
    assert SCRIPT.complaint(table, good, versions) == ""
    for fine in (
        {"id": "gym/U", "fingerprint": "vvvv", **as_before},
        {"id": "gym/U", "fingerprint": "wwww", "means": means | {"reward": 0.5002}, **as_before},
    ):
        assert SCRIPT.complaint(table, fine, versions) == ""
    other = good | {"id": "gym/U", "fingerprint": "wwww", "means": means | {"reward": 0.51}}
    shorter = good | {"settings": {"horizon": 500, "frame_skip": 5}}
    for row, have, words in (
        (other, versions, ("gym/U", "wwww now", "(0.5, 0.51)")),
        (shorter, versions, ("gym/A", "horizon 1000 before, 500 now", "another name")),
        (good | {"fingerprint": "cccc"}, versions, ("gym/A", "aaaa before", "cccc now")),
        (good | {"id": "gym/C"}, versions, ("`python scripts/fingerprints.py gym/C`",)),
        (good, {"mujoco": "3.4.0"}, ("3.3.0", "3.4.0")),
        ({"id": "gym/B", "error": "KeyError: x"}, versions, ("cannot be measured: KeyError: x",)),
    ):
        told = SCRIPT.complaint(table, row, have)
        assert all(word in told for word in words), told


def test_an_entry_is_made_of_two_processors() -> None:
    parts = ("versions", "fingerprints", "settings", "unsteady")
    table: dict[str, Any] = {part: {} for part in parts}

    def row(fingerprint: str) -> dict[str, Any]:
        held = {"fingerprint": fingerprint, "settings": {"horizon": 9}}
        return {"id": "gym/A", "means": {"reward": 1.0}, **held}

    SCRIPT.enter(table, row("a"), row("a"))
    assert table["fingerprints"] == {"gym/A": "a"} and table["unsteady"] == {}
    assert table["settings"] == {"gym/A": {"horizon": 9}}
    SCRIPT.enter(table, row("c"), row("c"), other_machine=True)
    assert table["fingerprints"] == {"gym/A": "a"}
    unsteady = {"fingerprints": ["a", "c"], "means": {"reward": 1.0}}
    assert table["unsteady"] == {"gym/A": unsteady}
    SCRIPT.enter(table, row("d"), row("b"))
    assert table["fingerprints"] == {"gym/A": "d"}
    assert table["unsteady"]["gym/A"]["fingerprints"] == ["b", "d"]
    SCRIPT.enter(table, row("d"), row("d"))
    assert table["unsteady"] == {}


def test_what_stays_open_is_counted(tmp_path: Path) -> None:
    before = SCRIPT.open_things()
    kept = make("gym/Reacher-v5"), open(tmp_path / "x", "w")  # noqa: SIM115
    after = SCRIPT.open_things()
    assert after["environments"] > before["environments"]
    assert after["file descriptors"] == before["file descriptors"] + 1
    kept[0].close()
    kept[1].close()


def test_an_id_that_cannot_be_measured_does_not_stop_the_others() -> None:
    rows = SCRIPT.measure_elsewhere(["gym/Reacher-v5", "gym/Swimmer-v5"])
    assert [set(row) >= {"fingerprint", "left_open"} for row in rows.values()] == [True, True]
    (row,) = SCRIPT.measure(["gym/Nothing-v5"])
    assert row["error"].startswith("TrimtabError: unknown environment")
