"""The torch releases for which a torch_npu is released."""

from __future__ import annotations

from packaging.version import Version

from ascend_adapt.errors import EmulationError

# Releases of torch_npu on PyPI, without their post releases, up to 2.14.0.
PAIRED = (
    *("2.1.0", "2.3.1", "2.4.0", "2.5.1", "2.6.0", "2.7.1", "2.8.0", "2.9.0", "2.9.1"),
    *("2.10.0", "2.11.0", "2.12.0", "2.13.0", "2.14.0"),
)


def require(torch: str) -> None:
    """Check that a torch_npu may pair with a torch release; for newer releases, pip decides.

    Raises:
        EmulationError: no torch_npu pairs with this torch.
    """
    if torch in PAIRED or Version(torch) > Version(PAIRED[-1]):
        return
    raise EmulationError(
        f"torch {torch}: no torch_npu is built for it, expected one of {', '.join(PAIRED)} — "
        f"install torch=={nearest(torch)}, the nearest"
    )


def nearest(torch: str) -> str:
    """Return the closest torch release that has a torch_npu."""

    def place(release: str) -> int:
        version = Version(release)
        return (version.major * 100 + version.minor) * 100 + version.micro

    return min(PAIRED, key=lambda paired: abs(place(paired) - place(torch)))
