"""Settings of enable(): an explicit argument, else the ASCEND_ADAPT_* variable, else the default."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from ascend_adapt import switches
from ascend_adapt.errors import SettingsError

PREFIX = "ASCEND_ADAPT"
DEVICES = ("npu", "cuda", "cpu")
NUMERICS = ("upstream", "exact")
CUDA_CODE = ("auto", "script", "all", "off")
SWITCHES = ("STRICT", "DETERMINISTIC", "STEP_GRAPH")
VARIABLES = (
    *("DEVICE", "DISABLE", "PLUGINS", "ALLOW_DRIFT", "CUDA_CODE", "KERNELS", "NUMERICS", "CACHE"),
    *("EMULATED_CANN", "EMULATED_MEMORY", "TORCH_NPU_WHEEL"),
    *SWITCHES,
)
"""Names, after the prefix, of the variables that users set."""
# Of the variables that only this package sets, none is so similar to one of these.
_MISSPELLED = 0.82


@dataclass(frozen=True)
class Settings:
    """Settings from one caller or from the environment; None for a setting that was not given."""

    plugins: tuple[Any, ...] = ()
    disable: tuple[str, ...] = ()
    device: str | None = None
    strict: bool | None = None
    allow_drift: tuple[str, ...] = ()
    allowed_plugins: tuple[str, ...] | None = None
    kernels: Mapping[str, str] | None = None
    cuda_code: str | None = None


def is_off(environ: Mapping[str, str]) -> bool:
    """Return whether the kill switch ASCEND_ADAPT=0 is set."""
    return not switches.is_on(environ, PREFIX, default=True)


def resolve(
    environ: Mapping[str, str],
    *,
    plugins: Iterable[Any] = (),
    disable: Iterable[str] = (),
    device: str | None = None,
    kernels: Mapping[str, str] | str | None = None,
    strict: bool | None = None,
    cuda_code: str | None = None,
) -> Settings:
    """Return the settings from the arguments, else from the environment.

    Raises:
        SettingsError: a value is invalid, or the name of a variable is misspelled.
    """

    def variable(name: str) -> str | None:
        return environ.get(f"{PREFIX}_{name}")

    def words(name: str) -> tuple[str, ...]:
        return tuple(word.strip() for word in (variable(name) or "").split(",") if word.strip())

    _check_names(environ)
    for name in SWITCHES:
        switches.is_on(environ, f"{PREFIX}_{name}")
    if strict is None and variable("STRICT") is not None:
        strict = switches.is_on(environ, f"{PREFIX}_STRICT")
    device = device or variable("DEVICE") or None
    if device not in (None, "auto", *DEVICES):
        raise SettingsError(
            f"device {device!r}: expected auto, {', '.join(DEVICES)} — correct device= or {PREFIX}_DEVICE"
        )
    wanted = kernels or variable("KERNELS")
    if variable("NUMERICS") not in (None, "", *NUMERICS):
        raise SettingsError(
            f"{PREFIX}_NUMERICS={variable('NUMERICS')!r}: expected {' or '.join(NUMERICS)} — correct it or unset it"
        )
    cuda_code = cuda_code or variable("CUDA_CODE") or None
    if cuda_code not in (None, *CUDA_CODE):
        raise SettingsError(
            f"cuda_code {cuda_code!r}: expected {', '.join(CUDA_CODE)} — correct cuda_code= or {PREFIX}_CUDA_CODE"
        )
    chosen = None
    if wanted:
        from ascend_adapt.kernels import requests

        chosen = requests.parse(wanted)
    plugins, disable = _list("plugins", plugins), _list("disable", disable)
    if not all(isinstance(name, str) for name in disable):
        raise SettingsError(f"disable={list(disable)!r}: expected names of plugins or patches — pass strings")
    if any(isinstance(plugin, (str, bytes)) for plugin in plugins):
        raise SettingsError(f"plugins={list(plugins)!r}: expected modules or objects — import them first")
    if strict is not None and not isinstance(strict, bool):
        raise SettingsError(f"strict={strict!r}: expected True or False — correct it")
    return Settings(
        plugins=plugins,
        disable=(*disable, *words("DISABLE")),
        device=None if device == "auto" else device,
        strict=strict,
        allow_drift=words("ALLOW_DRIFT"),
        allowed_plugins=words("PLUGINS") or None,
        kernels=chosen,
        cuda_code=cuda_code,
    )


def _list(argument: str, value: Iterable[Any]) -> tuple[Any, ...]:
    if isinstance(value, str) or not isinstance(value, Iterable):
        raise SettingsError(f"{argument}={value!r}: expected a list — put the value in a list")
    return tuple(value)


def _check_names(environ: Mapping[str, str]) -> None:
    """Raise an error for variables that are probably misspelled: they would be ignored without a word."""
    wrong = []
    for name in environ:
        rest = name.removeprefix(f"{PREFIX}_")
        if rest == name or rest in VARIABLES:
            continue
        if close := difflib.get_close_matches(rest, VARIABLES, 1, _MISSPELLED):
            wrong.append(f"{name}: there is no such setting — did you mean {PREFIX}_{close[0]}?")
    if wrong:
        raise SettingsError("\n".join(wrong))
