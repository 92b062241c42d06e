"""GLM's checkpoints, on a torch that reads weights only unless it is told otherwise."""

from __future__ import annotations

from ascend_adapt import Patch, rewrite


def _whole(target: str, name: str) -> Patch:
    return rewrite(
        target,
        old="torch.load(checkpoint_name, map_location='cpu')",
        new="torch.load(checkpoint_name, map_location='cpu', weights_only=False)",
        name=name,
        host="glm",
        requires="torch>=2.6",
        why="torch 2.6 reads weights only by default, and refuses the random states that GLM saves with them",
        until="GLM says weights_only=False, or saves weights alone",
        without="crash",
    )


# As GLM read them with the torch it was written for: load only what you trust.
WEIGHTS_AND_STATE = (
    _whole("train_utils:load_pretrained", "whole_pretrained_checkpoints"),
    _whole("utils:load_checkpoint", "whole_checkpoints"),
)
