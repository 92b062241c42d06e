"""The order of samples where Megatron's C++ helpers are not compiled and cannot be."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from ascend_adapt import Symptom, provide, wrap

from .releases import HOST, REQUIRES

HELPERS = "megatron.core.datasets.helpers_cpp"


@provide(
    HELPERS,
    requires=REQUIRES,
    host=HOST,
    why="GPT data needs a C++ module that a source archive does not hold, nor a checkout before make, g++ and pybind11",
    until="Megatron-core computes the order of samples in Python where the module is missing",
    without="crash",
    symptom=Symptom(reason="whether a module is compiled is no matter of the source"),
)
def dataset_helpers(module: ModuleType) -> None:
    """Fill in functions that return the order of the compiled ones."""
    from ascend_adapt.data.megatron_helpers import helpers_module

    ours = helpers_module(module.__name__, sample_index_dtype="int64")
    vars(module).update({name: value for name, value in vars(ours).items() if not name.startswith("__")})


@wrap(
    "megatron.core.datasets.utils:compile_helpers",
    requires=REQUIRES,
    host=HOST,
    why="it ends the process where make, g++ or pybind11 are missing, or the folder may not be written to",
    until="Megatron-core goes on without its compiled helpers",
    without="crash",
    symptom=Symptom("sys.exit(1)"),
)
def compile_helpers_or_go_on(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Compile; if that fails, go on with what is provided."""
    try:
        return wrapped(*args, **kwargs)
    except SystemExit:
        logging.getLogger(__name__).warning(
            "%s: was not compiled (see above), which is no error — the same order of samples is computed without it",
            HELPERS,
        )
        return None


PATCHES = (dataset_helpers, compile_helpers_or_go_on)
