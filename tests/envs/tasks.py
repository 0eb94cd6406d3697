"""Which tasks keep the whole contract, and which share another's."""

from __future__ import annotations

import re

from trimtab.envs.registry import list_envs, list_tasks

# What an id is turned into to get the id of the task whose contract it shares.
VARIANTS = {
    r"^ogbench/(.*?)-singletask(-task\d)?-v0$": r"ogbench/\1-v0",  # a scene's goal, fixed
    r"^ogbench/(.*maze)-(giant|large|teleport)": r"ogbench/\1-medium",
    r"^ogbench/antsoccer-arena": "ogbench/antsoccer-medium",
    r"^ogbench/cube-(double|triple|quadruple|octuple)": "ogbench/cube-single",
    r"^ogbench/puzzle-4x.": "ogbench/puzzle-3x3",
    r"^robosuite/(.*?)-(DPPO|DSRL)$": r"robosuite/\1",  # a scene's horizon and reward
    # Another scene; ``test_robosuite.py`` holds each of them to robosuite itself.
    r"^robosuite/(Door|Lift|PickPlaceCan|ToolHang|TwoArmTransport)$": "robosuite/NutAssemblySquare",
}
# One that has one start; ``test_mjx.py`` compiles one with drawn starts.
COMPILED = {"playground/BallInCup"}
# Tasks of one class and one model with another one, whose step differs in nothing but the reward.
STEPPED_AS = {
    "playground/AcrobotSwingupSparse", "playground/CartpoleBalance",
    "playground/CartpoleBalanceSparse", "playground/CartpoleSwingupSparse",
    "playground/FingerTurnHard", "playground/HopperStand", "playground/HumanoidRun",
    "playground/HumanoidStand", "playground/ReacherHard", "playground/WalkerRun",
    "playground/WalkerStand",
}  # fmt: skip


def shared_contract(id: str) -> str:
    """Return the id of the task that keeps the contract for ``id``: mostly itself."""
    for pattern, other in VARIANTS.items():
        id = re.sub(pattern, other, id)
    return id


TRACED = [id for id, task in list_tasks().items() if "mjx" in task.tags and id not in COMPILED]
SHARING = [id for id in list_envs() if shared_contract(id) != id]
# A scene takes seconds to make: OGBench's numbered tasks, its larger scenes with a fixed goal and
# robosuite's other scenes, horizons and rewards are played with --every-task alone. A goal is fixed
# alike in every scene, and ``test_robosuite.py`` holds robosuite's to robosuite itself.
_LARGER = "giant|large|teleport|double|triple|quadruple|octuple|4x."
_UNPLAYED = rf"-task\d|^robosuite/|-({_LARGER})-singletask"
PLAYED = [id for id in SHARING if not re.search(_UNPLAYED, id)]
WHOLE = [id for id in list_envs() if id not in {*TRACED, *SHARING}]
