"""Files of Diffusion Policy: recognised, and refused with what they hold.

Chi et al., "Diffusion Policy: Visuomotor Policy Learning via Action Diffusion" (arXiv 2303.04137).
Its U-Net is conditioned by FiLM and its transformer is its own: no kind of policy here has such a
network. The configuration is read as a stub, and ``pickles`` stays bytes.
"""

from __future__ import annotations

from typing import Any

from trimtab.errors import TrimtabError
from trimtab.policies.imports.actors import Actor, Unsaid
from trimtab.policies.imports.layouts import Layout, at
from trimtab.policies.imports.torch_archive import TensorArchive

__all__ = ["LAYOUTS"]

_NETWORK = "model."


def _read(archive: TensorArchive, unsaid: Unsaid) -> Actor:
    kept = at(archive.content, "state_dicts")
    tensors: dict[Any, Any] = next(
        (kept[name] for name in ("ema_model", "model") if at(kept, name)), {}
    )
    first = [name for name in tensors if str(name).startswith(_NETWORK)][:4]
    raise TrimtabError(
        f"{archive.where}: is of Diffusion Policy with {', '.join(map(str, kept))[:100]}; its "
        f"network ({len(tensors)} tensors, {', '.join(first)[:200]}) is of no kind of policy that "
        "there is here; export it as ONNX where it was trained, and import that"
    )


LAYOUTS = (
    Layout(
        "Diffusion Policy",
        lambda content: isinstance(at(content, "state_dicts"), dict),
        _read,
    ),
)
