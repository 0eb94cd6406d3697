"""Which runs bring a claim to its next look, and in which order."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from trimtab.benchmarks.board.arena.claim_list import Claim
from trimtab.benchmarks.board.arena.findings import Finding
from trimtab.benchmarks.board.arena.next_looks import plan_looks
from trimtab.benchmarks.board.verdicts import Verdict

SECONDS = {None: 10.0, "frozen": 1.0, "steered": 100.0, "tuned": 50.0, "nothing": 7.0}


def record(task: str, method: str | None, seed: int, base: str | None = "flow") -> dict[str, Any]:
    place = {"task": task, "base": base, "method": method}
    name = "-".join(part for part in (task, base, method) if part)
    return {"name": name, "seed": seed, "seconds": SECONDS[method], "place": place}


def records(*tasks: str, seeds: int = 3) -> list[dict[str, Any]]:
    return [
        record(task, method, seed, None if method == "nothing" else "flow")
        for task in tasks
        for method in SECONDS
        for seed in range(seeds)
    ]


def finding(claim: Claim, verdict: Verdict = "not told yet") -> Finding:
    return Finding(claim, verdict, "", 1, seeds_to_tell=claim.looks[-1] if claim.looks else 9)


def claim(method: str, **more: Any) -> Claim:
    settings: dict[str, Any] = {"kind": "control", "looks": (3, 5), **more}
    return Claim(f"{method} {settings}", "", "ours", method=method, **settings)


def test_a_claim_needs_both_sides_and_their_bases_up_to_its_next_look() -> None:
    (look,) = plan_looks([finding(claim("steered"))], {"": records("door")}, ["frozen"])
    assert look.look == 5
    names = ("door-flow", "door-flow-frozen", "door-flow-steered")
    assert set(look.runs) == {(name, seed) for name in names for seed in (3, 4)}
    assert look.hours == 2 * (10.0 + 1.0 + 100.0) / 3600


def test_runs_of_a_claim_before_are_not_counted_again_and_the_cheapest_comes_first() -> None:
    dear, cheap = claim("steered"), claim("tuned")
    found = plan_looks([finding(dear), finding(cheap)], {"": records("door")}, ["frozen"])
    assert [one.claim for one in found] == [cheap, dear]
    assert found[1].runs == (("door-flow-steered", 3), ("door-flow-steered", 4))


def test_what_is_told_or_has_no_budget_left_or_no_look_would_tell_is_not_planned() -> None:
    told = finding(claim("steered"), "better")
    spent = finding(claim("tuned", looks=(2, 3)))
    once = finding(claim("tuned", looks=()))
    vain = [replace(finding(claim("tuned")), seeds_to_tell=seeds) for seeds in (None, 6)]
    assert plan_looks([told, spent, once, *vain], {"": records("door")}, ["frozen"]) == []


def test_a_claim_of_new_seeds_speaks_of_the_contests_that_have_some() -> None:
    rows = [*records("door"), *records("push", seeds=5)]
    asked = claim("steered", seeds=(3, 4, 5, 6), looks=(2, 3))
    (look,) = plan_looks([finding(asked)], {"": rows}, ["frozen"])
    assert {name.split("-")[0] for name, _ in look.runs} == {"push"}
    assert {seed for _, seed in look.runs} == {5}


def test_a_side_that_starts_from_nothing_belongs_to_each_contest_of_its_task() -> None:
    asked = claim("tuned", kind="higher", than="nothing", looks=(4,))
    (look,) = plan_looks([finding(asked)], {"": records("door")}, ["frozen"])
    names = {("door-flow", 3), ("door-flow-tuned", 3), ("door-nothing", 3)}
    assert set(look.runs) == names


def test_a_suite_of_data_has_its_own_runs() -> None:
    data = [{**one, "place": {**one["place"], "base": None}} for one in records("maze")]
    asked = claim("steered", kind="higher", than="tuned", suite="offline", looks=(4,))
    (look,) = plan_looks([finding(asked)], {"": [], "offline": data}, ["frozen"])
    assert {seed for _, seed in look.runs} == {3} and len(look.runs) == 3


def test_one_seed_that_shared_its_processor_does_not_make_a_plan_dear() -> None:
    rows = records("door")
    slow = next(one for one in rows if one["name"] == "door-flow-steered" and one["seed"] == 2)
    slow["seconds"] *= 40
    (look,) = plan_looks([finding(claim("steered"))], {"": rows}, ["frozen"])
    assert look.hours == 2 * (10.0 + 1.0 + 100.0) / 3600
