"""Run a bundle on a robot: numpy and onnxruntime, no torch.

    runner = load_policy("my-bundle")
    runner.reset()
    action = runner.step(obs)  # once a control tick

Before a bundle is used, the hashes of its files are checked and its golden rows are replayed. At
run time an observation that is not what the policy was trained on raises; it never becomes an
action.
"""

from __future__ import annotations

from pathlib import Path

from trimtab.errors import TrimtabError
from trimtab.policies.bundle.files import GOLDEN, ONNX, Contract, read_files, read_golden
from trimtab.policies.bundle.runner import PolicyRunner

__all__ = ["PolicyRunner", "load_policy"]


def load_policy(
    folder: str | Path, *, seed: int = 0, deterministic: bool | None = None
) -> PolicyRunner:
    """Open a bundle, check all of it, and return its policy ready to run.

    Args:
        folder: the bundle's folder.
        seed: seed of the noise.
        deterministic: zero noise if True, sampled if False; None takes the
            setting with which the policy is judged (``evaluate_deterministic`` in its contract).

    Raises:
        TrimtabError: if a file is missing or was changed, or if onnxruntime does not give the
            golden actions within 1e-4.
    """
    config, files = read_files(folder)
    contract = Contract.parse(config, f"bundle {folder}")
    golden = read_golden(files[GOLDEN], contract, str(Path(folder) / GOLDEN))
    if ONNX not in files:
        raise TrimtabError(
            f"bundle {folder}: has no {ONNX}; make a complete bundle of its run by trimtab export"
        )
    runner = PolicyRunner(
        contract, files[ONNX], f"bundle {folder}", seed=seed, deterministic=deterministic
    )
    runner.check(golden)
    return runner
