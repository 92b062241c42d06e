"""Loss scaling for fp16, by Megatron-LM's or DeepSpeed's rule; the rules differ after consecutive overflows.

Sources: NVIDIA/Megatron-LM@core_v0.9.0 megatron/core/optimizer/grad_scaler.py, deepspeedai/DeepSpeed@edaa7221
deepspeed/runtime/fp16/loss_scaler.py.
"""

from __future__ import annotations

from ascend_adapt.config.train_config import LossScale, Precision
from ascend_adapt.errors import TrainingError


class Scaler:
    """Loss scaler, static or dynamic; ``scale`` is 1 without fp16."""

    def __init__(self, precision: Precision) -> None:
        self.rule: LossScale | None = precision.loss_scale if precision.dtype == "fp16" else None
        self.scale = 1.0 if self.rule is None else (self.rule.fixed or self.rule.initial)
        self._hysteresis = self.rule.hysteresis if self.rule else 0
        self._good = 0

    def update(self, overflowed: bool) -> None:
        """Update the scale after a step.

        Raises:
            TrainingError: an overflow at the minimum scale, by DeepSpeed's rule.
        """
        rule = self.rule
        if rule is None or not self.moves:
            return
        if not overflowed:
            self._good += 1
            # Not ==: a resumed run may have counted more steps than its window has.
            if self._good >= rule.window:
                self._good, self._hysteresis = 0, rule.hysteresis
                self.scale *= 2.0
            return
        self._good = 0
        if rule.rule == "deepspeed":
            self._overflow_as_deepspeed(rule)
        else:
            self._hysteresis -= 1
            if self._hysteresis <= 0:
                self.scale = max(self.scale * 0.5, rule.minimum)

    @property
    def moves(self) -> bool:
        """Whether the scale is dynamic."""
        return self.rule is not None and not self.rule.fixed

    def state_dict(self) -> dict[str, float]:
        """Return the state for a checkpoint; empty for a static scale."""
        return {"scale": self.scale, "hysteresis": self._hysteresis, "good": self._good} if self.moves else {}

    def load_state_dict(self, state: dict[str, float]) -> None:
        """Restore ``state_dict``. A static scale stays as configured, as does any scale if the state is empty."""
        if not (self.moves and state):
            return
        self.scale, self._hysteresis = state["scale"], int(state["hysteresis"])
        self._good = int(state["good"])

    def _overflow_as_deepspeed(self, rule: LossScale) -> None:
        if self._hysteresis > 1:
            self._hysteresis -= 1
            return
        if self.scale <= rule.minimum:
            raise TrainingError(
                f"loss scale: overflow at {self.scale:g}, the minimum scale — lower the learning rate, or use bf16"
            )
        self.scale = max(self.scale / 2.0, rule.minimum)
