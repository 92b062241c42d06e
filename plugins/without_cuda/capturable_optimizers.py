"""Optimizers with ``capturable=True`` on a CPU."""

from __future__ import annotations

from ascend_adapt import rewrite

# A rewrite, because torch.jit.script compiles this function, and would not compile a wrapper.
capturable_optimizers = rewrite(
    "torch.optim.optimizer:_get_capturable_supported_devices",
    old='["cuda", "xpu", "hpu"]',
    new='["cuda", "xpu", "hpu", "cpu"]',
    name="capturable_optimizers",
    devices="cpu",
    requires="torch>=2.11",
    why="optimizers reject capturable=True in host memory, although they only keep their step counts in tensors for it",
    until="torch's optimizers accept capturable=True on a CPU",
    without="crash",
)
