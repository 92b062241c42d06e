"""The CANN release that each torch_npu release requires.

Source: COMPATIBILITY.md of Ascend/pytorch at 9e73e708a (2026-08-21), releases from 2.1.0 on.
"""

from __future__ import annotations

from packaging.version import InvalidVersion, Version

_TORCH_NPU_BY_CANN = {
    "9.1.0": "2.12.0 2.11.0 2.10.0.post4 2.9.0.post6 2.7.1.post8",
    "9.0.0": "2.9.0.post2 2.8.0.post4 2.7.1.post4",
    "8.5.0": "2.9.0 2.8.0.post2 2.7.1.post2 2.6.0.post5",
    "8.3.RC1": "2.8.0 2.7.1 2.6.0.post3 2.1.0.post17",
    "8.2.RC1": "2.6.0 2.5.1.post1 2.1.0.post13",
    "8.1.RC1": "2.5.1 2.4.0.post4 2.3.1.post6 2.1.0.post12",
    "8.0.0": "2.4.0.post2 2.3.1.post4 2.1.0.post10",
    "8.0.RC3": "2.4.0 2.3.1.post2 2.1.0.post8",
    "8.0.RC2": "2.3.1 2.2.0.post2 2.1.0.post6",
    "8.0.RC1": "2.2.0 2.1.0.post4",
    "7.0.0": "2.1.0",
}
CANN_OF = {torch_npu: cann for cann, releases in _TORCH_NPU_BY_CANN.items() for torch_npu in releases.split()}


def torch_npus_for(cann: str, torch: tuple[int, ...]) -> list[str]:
    """Return the torch_npu releases for a CANN release and a torch release."""
    return [one for one in _TORCH_NPU_BY_CANN.get(cann, "").split() if Version(one).release == torch]


def is_older(cann: str, than: str) -> bool | None:
    """Return whether one CANN release is older than another, as 8.2.RC1 is than 8.3.RC1, or None if unknown."""
    try:
        return Version(cann) < Version(than)
    except InvalidVersion:  # such as 8.0.RC1.alpha003
        return None
