"""The model card of a bundle: Markdown with the front matter that model hubs read."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from trimtab.observations import called

_BEGINS = {
    False: "# What the robot was last sent, or where it stands: limits of rates begin there.\n"
    "policy.reset(action=positions)",
    True: "# The robot is at rest. If it still moves: reset(action=<the velocities in force>).\n"
    "policy.reset()",
}
"""How an episode begins, by whether the commands are velocities."""


def model_card(config: Mapping[str, Any], results: Mapping[str, Any] | None = None) -> str:
    """Return the text of a bundle's ``README.md``.

    Args:
        config: the bundle's ``config.json``.
        results: rows of the table of results, by name; without them the table is left out.
    """
    kind, env = config["policy"]["kind"], config["env"]["id"]
    algorithm = config["training"].get("algorithm")
    tags = ["robotics", "reinforcement-learning", "trimtab", kind, env]
    tags += [algorithm] if algorithm else []
    limits = "" if "limits" in config else ", limits=Limits(velocity=…)"
    front = "\n".join(
        ["---", "library_name: trimtab", "pipeline_tag: robotics", "tags:"]
        + [f"- {json.dumps(str(tag))}" for tag in tags]
        + ["---"]
    )
    parts = [
        front,
        f"# {kind} policy for {env}",
        _origin(kind, config["training"], env)
        + " One call maps an observation and noise to a chunk of "
        "actions; normalisation and sampler are inside.",
        "## Use",
        "On a robot, with numpy and onnxruntime alone:",
        _code(
            f"from trimtab.policies.runtime import {'Limits, ' * bool(limits)}load_policy\n\n"
            f'policy = load_policy("path/to/this/folder"{limits})\n'
            f"{_BEGINS[bool(config.get('limits', {}).get('of_velocities'))]}\n"
            "action = policy.step(observation)  # once a control tick"
        ),
        "With torch:",
        _code(
            "from trimtab.policies.bundle.bundle import load_bundle\n\n"
            'policy = load_bundle("path/to/this/folder").policy\n'
            "actions = policy.act(observations, deterministic=True)"
        ),
        "Both check the hashes of the files and replay the golden rows before anything is used. "
        "`policy.onnx` is one graph with the weights inside, any batch size; its `metadata_props` "
        "carry this contract.",
        "## Contract",
        _table("", _contract(config)),
        "## Training",
        _table("", config["training"]),
    ]
    if changed := config.get("changed"):
        rows = {name: f"{one['to']}; in training {one['from']}" for name, one in changed.items()}
        parts += ["## Changed after training", _table("", rows)]
    if results:
        parts += ["## Results", _table("result", results)]
    return "\n\n".join(parts) + "\n"


def _origin(kind: str, training: Mapping[str, Any], env: str) -> str:
    """Return the sentence that says where a policy comes from."""
    if "file" in training:
        return f"A {kind} policy for `{env}`, made of somebody else's file `{training['file']}`."
    by = f" by {training['algorithm']}" if training.get("algorithm") else ""
    return f"A {kind} policy trained{by} for `{env}` with Trimtab."


def _contract(config: Mapping[str, Any]) -> dict[str, Any]:
    """Return what goes into the policy and comes out of it, by the words of the card."""
    env = config["env"]
    inputs, action = dict(config["inputs"]), config["outputs"]["action"]
    noise = inputs.pop("noise")
    chunking, rate = config["chunking"], config["control_rate"]
    return {
        **{row: text for name, port in inputs.items() for row, text in _read(name, port).items()},
        "history": f"{config['history']} observations" if "history" in config else "",
        "noise": f"{_shape(noise)} {noise['dtype']}, {noise['distribution']}; "
        f"{noise['deterministic']} for deterministic actions",
        "action": f"{_shape(action)} {action['dtype']}, {_units(action)}",
        "action order": _order(action["order"]),
        "action limits": f"{_numbers(action['low'])} to {_numbers(action['high'])}",
        "limits on a robot": json.dumps(config["limits"]) if "limits" in config else "none stated",
        "chunking": f"{chunking['horizon']} actions predicted, {chunking['act_steps']} played",
        "control rate": "none" if rate is None else f"{rate:g} Hz",
        "judged": "with zero noise" if config["evaluate_deterministic"] else "with sampled noise",
        "environment": env["id"],
        "environment options": json.dumps(env["options"]),
        "episode": f"{env['horizon']} steps" if env["horizon"] else "",
        "physics fingerprint": env["fingerprint"],
    }


def _read(name: str, port: Mapping[str, Any]) -> dict[str, str]:
    """Return the rows about one thing that the policy reads, by what the card calls it."""
    kind = f"{_shape(port)} {port['dtype']}, {_units(port)}"
    if "remembered" in port:
        return {f"memory {name}": f"{kind}; {port['given']:g} as an episode begins"}
    if "choices" in port:
        known = [str(one) for one in port["choices"]]
        return {f"choice {name}": f"{', '.join(known)}; {known[int(port['given'])]} by default"}
    if "given" in port:
        return {f"input {name}": f"{kind}; {port['given']:g} unless it is chosen"}
    return {called(name): kind, f"{called(name)} order": _order(port["order"])}


def _numbers(limits: Sequence[float]) -> str:
    """Return limits as the shortest texts from which their float32 numbers can be read again."""
    return f"[{', '.join(str(np.float32(limit)) for limit in limits)}]"


def _units(port: Mapping[str, Any]) -> str:
    units = port["units"]
    return units if isinstance(units, str) else f"in {', '.join(units)}"


def _shape(port: Mapping[str, Any]) -> str:
    return "[" + ", ".join(map(str, port["shape"])) + "]"


def _order(order: Any) -> str:
    return "by index" if order == "index" else ", ".join(order)


def _code(text: str) -> str:
    return f"```python\n{text}\n```"


def _table(title: str, rows: Mapping[str, Any]) -> str:
    """Return a Markdown table of two columns, leaving out what is not known."""
    lines = [f"| {title} | |", "|---|---|"]
    for name, value in rows.items():
        if value is None or value == "":
            continue
        text = value if isinstance(value, str) else json.dumps(value, default=str)
        lines.append(f"| {_cell(name)} | {_cell(text)} |")
    return "\n".join(lines)


def _cell(text: str) -> str:
    """Return ``text`` so that it cannot end its table cell."""
    return " ".join(text.split()).replace("|", "\\|")
