"""Run another code base's own script, unmodified, on weights that are given, and keep what its model is shown.

    ascend-run ... upstream_from_weights.py SCRIPT [its arguments]

UPSTREAM_SCRIPT may name it instead, for launchers that start one script. Before the first forward pass all parameters
are filled from UPSTREAM_GIVEN/weights.pt, cut as the rank holds them; the ids of its first micro batches are left in
UPSTREAM_GIVEN/seen-RANK.pt. Nothing else of the run is touched.
"""

from __future__ import annotations

import os
import runpy
import sys
from pathlib import Path

import torch
import torch.distributed as dist
from torch.nn.modules.module import register_module_forward_pre_hook

sys.path.insert(0, str(Path(__file__).parent))
from upstream_names import own_name

GIVEN = Path(os.environ["UPSTREAM_GIVEN"])
MICRO_BATCHES = 16


class Filled:
    """The model that was filled, known by being the first to get ids, and the ids that it got."""

    def __init__(self) -> None:
        self.model: torch.nn.Module | None = None
        self.seen: list[torch.Tensor] = []

    def __call__(self, module: torch.nn.Module, given: tuple) -> None:
        """Look at one forward pass before it is made."""
        ids = next((one for one in _flat(given) if torch.is_tensor(one) and one.dtype == torch.int64), None)
        if ids is None:
            return
        if self.model is None:
            self.model = module
            fill(module)
        if module is self.model and len(self.seen) < MICRO_BATCHES:
            self.seen.append(ids.detach().cpu().clone())
            torch.save(self.seen, GIVEN / f"seen-{os.environ.get('RANK', '0')}.pt")


@torch.no_grad()
def fill(model: torch.nn.Module) -> None:
    """Fill all parameters of a model, or of what a tensor-parallel rank holds of it."""
    weights: dict[str, torch.Tensor] = torch.load(GIVEN / "weights.pt", weights_only=True)
    left = set(weights)
    for name, parameter in model.named_parameters():
        mine = own_name(name)
        gate = mine.replace("dense_h_to_4h", "gate")
        # Of a gated MLP upstream has one tensor, the gate's rows above.
        parts = [gate, mine] if gate != mine and gate in weights else [mine]
        missing = [part for part in parts if part not in weights]
        if missing:
            raise KeyError(f"{name}: is {missing[0]} here, which is none of {sorted(weights)}")
        left -= set(parts)
        pieces = [_piece(weights[part], parameter.shape, len(parts)) for part in parts]
        parameter.copy_(torch.cat(pieces))
    if left:
        raise KeyError(f"upstream's model has no {sorted(left)}")


def _piece(whole: torch.Tensor, shape: torch.Size, of: int) -> torch.Tensor:
    """Return this rank's piece of a whole parameter, which is ``1 / of`` of the rows of ``shape``."""
    wanted = (shape[0] // of, *shape[1:])
    for axis, (have, want) in enumerate(zip(whole.shape, wanted, strict=True)):
        if have != want:
            return whole.chunk(have // want, axis)[dist.get_rank()]
    return whole


def _flat(given: object) -> list:
    return [one for part in given for one in _flat(part)] if isinstance(given, tuple | list) else [given]


if __name__ == "__main__":
    script = os.environ.get("UPSTREAM_SCRIPT")
    if script is None:
        del sys.argv[0]
        script = sys.argv[0]
    sys.argv[0] = script
    sys.path[0] = str(Path(script).parent)
    register_module_forward_pre_hook(Filled())
    runpy.run_path(script, run_name="__main__")
