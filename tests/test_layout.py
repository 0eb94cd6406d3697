"""The layout of the project: which room may import which, and nothing is decided by a name.

``violations`` looks at one file; ruff's settings in ``pyproject.toml`` have the other rules. The
last tests give both short wrong snippets, so that a rule which stops seeing anything is noticed.
"""

from __future__ import annotations

import ast
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
CODE = ("envs", "datasets", "policies", "algorithms", "benchmarks")
LINKS = (*CODE, "conf")
BASE = frozenset(
    {"errors", "types", "observations", "limits", "files", "processor", "discovery", "plugins"}
    | {"settings", "version", "child"}
)
# The package's door: it names what the package offers, and imports it only when it is used.
DOOR = "src/trimtab/__init__.py"
# Which parts of trimtab a folder may import, besides itself. "" is the top: src/trimtab/*.py.
ALLOWED = {
    "": BASE,
    DOOR: BASE | {*LINKS},
    "envs": BASE,
    "datasets": BASE,
    "policies": BASE,
    "algorithms": frozenset({"observations", "errors", "settings", "types", "policies"}),
    "benchmarks": BASE | {*LINKS},
    "conf": frozenset[str](),
}
# An algorithm sees tensors and policies: no simulator, file, logger, setting or screen.
NOT_IN_ALGORITHMS = frozenset(
    {"gymnasium", "gymnasium_robotics", "metaworld", "mujoco", "hydra", "omegaconf", "yaml"}
    | {"os", "io", "pathlib", "shutil", "tempfile", "subprocess", "logging", "rich", "matplotlib"}
    | {"json", "h5py", "pyarrow", "safetensors", "onnx", "onnxruntime"}
)
IDENTITIES = re.compile(
    r"(algorithm|env|environment|task|policy|family|method|kind|name)(_(id|name|kind))?"
)


def imported(node: ast.AST) -> list[str]:
    """Full names of what an import statement, or a dynamic import by literal, asks for."""
    match node:
        case ast.Import():
            return [alias.name for alias in node.names]
        case ast.ImportFrom(level=0, module=str(module)):
            return [f"{module}.{alias.name}" for alias in node.names]
        case ast.Call(args=[ast.Constant(value=str(name)), *_]):
            if ast.unparse(node.func).split(".")[-1] in {"import_module", "__import__"}:
                return [name]
    return []


def identity(node: ast.expr) -> bool:
    """Whether an expression reads like the name of an algorithm, task, policy and so on."""
    match node:
        case ast.Name(id=name):
            return IDENTITIES.fullmatch(name) is not None
        case ast.Attribute(value=owner, attr=name):
            holder = ast.unparse(owner).split(".")[-1]  # dtype.kind and os.name are other things
            return holder not in {"dtype", "os", "path"} and IDENTITIES.fullmatch(name) is not None
        case ast.Subscript(slice=ast.Constant(value=str(name))):
            return IDENTITIES.fullmatch(name) is not None
        case ast.Call(func=ast.Attribute(value=owner, attr="lower" | "strip" | "split")):
            return identity(owner)
    return False


def names(node: ast.AST) -> bool:
    """Whether an expression or pattern is a literal name, or a literal collection of them."""
    match node:
        case ast.Constant(value=str(text)):
            return bool(text) and (text.count(".") == 0 or "/" in text)  # x.json is a file
        case ast.Tuple(elts=parts) | ast.List(elts=parts) | ast.Set(elts=parts):
            return any(names(part) for part in parts)
        case ast.MatchValue(value=value):
            return names(value)
        case ast.MatchOr(patterns=patterns):
            return any(names(pattern) for pattern in patterns)
    return False


def chosen_by_name(node: ast.AST) -> bool:
    """Whether a node decides something by comparing an identity with a literal name."""
    match node:
        case ast.Compare(left=left, ops=ops, comparators=comparators):
            sides = [left, *comparators]
            equal = any(isinstance(op, ast.Eq | ast.NotEq | ast.In | ast.NotIn) for op in ops)
            return equal and any(map(identity, sides)) and any(map(names, sides))
        case ast.Match(subject=subject, cases=cases):
            return identity(subject) and any(names(case.pattern) for case in cases)
        case ast.Call(func=ast.Attribute(value=owner, attr="startswith" | "endswith")):
            return identity(owner) and any(map(names, node.args))
    return False


def violations(path: str, source: str) -> list[str]:
    """Return every breach of the layout's rules in one file of the package.

    Args:
        path: its place, ``"envs/families/gym.py"`` or ``"src/trimtab/types.py"``.
        source: its text.
    """
    folder = path.split("/")[0] if path.split("/")[0] in LINKS else ""
    allowed = {folder, *ALLOWED[DOOR if path == DOOR else folder]}
    found: list[tuple[int, str]] = []
    for node in ast.walk(ast.parse(source)):
        for target in imported(node):
            first, _, rest = target.partition(".")
            part = rest.partition(".")[0]
            shapes = target.startswith("gymnasium.spaces")  # what a peer library is told
            if folder == "algorithms" and first in NOT_IN_ALGORITHMS and not shapes:
                found.append((node.lineno, f"imports {first}; an algorithm knows tensors only"))
            if first == "trimtab" and part in BASE | {*LINKS} and part not in allowed:
                found.append((node.lineno, f"imports trimtab.{part}, a room that it must not know"))
        if isinstance(node, ast.Call):
            if folder == "algorithms" and ast.unparse(node.func) == "open":
                found.append((node.lineno, "opens a file; an algorithm reads and writes none"))
            pickles = {word.arg: ast.unparse(word.value) for word in node.keywords}
            if pickles.get("allow_pickle", "False") != "False":
                found.append((node.lineno, "allows pickles"))
        if chosen_by_name(node):
            found.append((node.lineno, "decides by a name; make it a method or a value"))
    return [f"{path}:{line} {text}" for line, text in sorted(set(found))]


def package_files() -> list[Path]:
    """Every Python file of the package, once, below the root."""
    folders = [ROOT / name for name in LINKS]
    inside = [path for folder in folders for path in folder.rglob("*.py")
              if "results" not in path.parts]  # fmt: skip
    return sorted([*inside, *(ROOT / "src" / "trimtab").glob("*.py")])


def text_files() -> Iterator[tuple[Path, str]]:
    """Every text file that git tracks, or would track, that is there."""
    command = ["git", "ls-files", "--cached", "--others", "--exclude-standard", "-z"]
    listed = subprocess.check_output(command, cwd=ROOT, text=True)
    for name in filter(None, listed.split("\0")):
        path = ROOT / name
        if path.is_file() and not path.is_symlink():
            data = path.read_bytes()
            if b"\0" not in data:
                yield path, data.decode("utf-8", errors="replace")


def machine_words(text: str) -> list[str]:
    """Paths of somebody's machine and addresses of package registries in a text.

    The pattern is in pieces, because this file is searched too; a path begins after what cannot
    belong to a longer path or to a picture in base64.
    """
    folders = "|".join(("work", "root", "home", "Users", "tmp/w"))
    registries = "|".join(("pypi" + r"\.org", "python" + "hosted", "--(extra-)?index" + "-url"))
    found = re.finditer(r"(?<![\w/+.~)}-])/(" + folders + ")/|" + registries, text)
    return [match.group(0) for match in found]


def test_every_file_keeps_the_rules() -> None:
    files = package_files()
    seen = {path.relative_to(ROOT).parts[0] for path in files}
    assert seen == {*LINKS, "src"}
    wrong = [
        text
        for path in files
        for text in violations(path.relative_to(ROOT).as_posix(), path.read_text(encoding="utf-8"))
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize("name", LINKS)
def test_folder_is_linked_into_the_package(name: str) -> None:
    link = ROOT / "src" / "trimtab" / name
    assert link.is_symlink()
    assert os.readlink(link) == f"../../{name}"
    assert (ROOT / name).is_dir()


def test_only_conf_is_a_regular_package() -> None:
    # With an __init__.py, `datasets` at the root would hide the library of that name.
    assert not [path for name in CODE for path in (ROOT / name).rglob("__init__.py")]
    assert (ROOT / "conf" / "__init__.py").is_file()


@pytest.mark.parametrize("module", ["trimtab", "trimtab.errors", "trimtab.policies.runtime"])
def test_light_module_loads_nothing_heavy(module: str) -> None:
    heavy = {"torch", "gymnasium", "mujoco", "hydra", "diffusers", "h5py", "matplotlib"}
    if "policies" not in module:  # the runtime of a robot has numpy
        heavy.add("numpy")
    code = f"import sys, {module}; print(sorted({heavy} & set(sys.modules)))"
    result = subprocess.run([sys.executable, "-P", "-c", code], capture_output=True, text=True)
    assert (result.stdout.strip(), result.stderr) == ("[]", "")


def test_no_file_names_a_machine_or_a_registry() -> None:
    wrong = [
        f"{path.relative_to(ROOT)}: {word}"
        for path, text in text_files()
        for word in machine_words(text)
    ]
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("envs/a.py", "from trimtab.datasets.sources.replay import ReplayBuffer"),
        ("envs/a.py", "from trimtab import policies"),
        ("datasets/a.py", "import trimtab.envs.vector"),
        ("policies/a.py", "def f():\n    from trimtab.algorithms.off_policy.sac import Sac"),
        ("policies/a.py", "import importlib\nimportlib.import_module('trimtab.envs.families.gym')"),
        ("algorithms/a.py", "from trimtab.datasets.sources.replay import ReplayBuffer"),
        ("algorithms/a.py", "from trimtab.files import read_json"),
        ("algorithms/a.py", "from trimtab.benchmarks.training.train import train"),
        ("algorithms/a.py", "import gymnasium as gym"),
        ("algorithms/a.py", "from hydra.utils import instantiate"),
        ("algorithms/a.py", "import logging"),
        ("algorithms/a.py", "from pathlib import Path"),
        ("algorithms/a.py", "open('weights')"),
        ("src/trimtab/types.py", "from trimtab.policies.base import Policy"),
        ("conf/__init__.py", "import trimtab.types"),
        ("datasets/a.py", "np.load(path, allow_pickle=True)"),
        ("datasets/a.py", "np.load(path, allow_pickle=flag)"),
        ("benchmarks/a.py", "if name == 'sac': pass"),
        ("benchmarks/a.py", "x = 1 if 'dsrl_sac' != config.algorithm else 2"),
        ("benchmarks/a.py", "if cfg['env'] in ('gym/Ant-v5', 'gym/Hopper-v5'): pass"),
        ("policies/a.py", "if config['kind'].lower() == 'flow': pass"),
        ("envs/a.py", "if env_id.startswith('metaworld'): pass"),
        ("envs/a.py", "match task:\n    case 'push' | 'reach':\n        pass"),
    ],
)
def test_rule_sees_a_breach(path: str, source: str) -> None:
    assert len(violations(path, source)) == 1


@pytest.mark.parametrize(
    ("path", "source"),
    [
        ("envs/a.py", "import gymnasium\nfrom trimtab.types import TrimtabError"),
        ("datasets/a.py", "from trimtab.datasets.episodes import Episode\nopen('data')"),
        ("policies/a.py", "from trimtab import __version__\nfrom trimtab.files import read_json"),
        ("algorithms/a.py", "import torch\nfrom trimtab.policies.base import Policy"),
        ("algorithms/a.py", "from trimtab.algorithms.off_policy.sac import Sac\npolicy.eval()"),
        ("algorithms/a.py", "from gymnasium import spaces"),
        ("benchmarks/a.py", "from trimtab.envs.vector import make_vec\nyaml.safe_load(text)"),
        ("datasets/a.py", "np.load(path, allow_pickle=False)"),
        ("datasets/a.py", "if array.dtype.kind not in 'fiu' or path.name == 'metadata.json': pass"),
        ("benchmarks/a.py", "if name in registry or name is None or __name__ == '__main__': pass"),
        ("src/trimtab/types.py", "from trimtab.errors import TrimtabError"),
    ],
)
def test_rule_lets_good_code_pass(path: str, source: str) -> None:
    assert violations(path, source) == []


BANNED = """
import pickle
from joblib import load
import torch
torch.load(path)
from torch import save
import yaml
yaml.load(text)
print(text)
eval(text)
exec(text)
from . import train
import datasets
from envs.vector import make_vec
"""


def test_ruff_sees_what_the_project_bans() -> None:
    words = ["--select", "TID,T,S", "--output-format", "concise", "--stdin-filename"]
    command = [sys.executable, "-m", "ruff", "check", *words, "benchmarks/a.py", "-"]
    told = subprocess.run(command, cwd=ROOT, input=BANNED, capture_output=True, text=True).stdout
    lines = {int(line) for line in re.findall(r"^benchmarks/a\.py:(\d+):", told, re.MULTILINE)}
    fine = {1, 4, 7}  # nothing, and the two libraries
    assert lines == set(range(1, len(BANNED.splitlines()) + 1)) - fine
