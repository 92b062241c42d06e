"""The C++ helpers of a code base's data sets, which it compiles into its own folder when training begins."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from ascend_adapt import Patch, Symptom, provide, wrap


def compiled_helpers(compiling: str, *, host: str | tuple[str, ...]) -> tuple[Patch, Patch]:
    """Return the patches by which a code base trains on where ``compiling``, its function, fails."""

    @wrap(
        compiling,
        host=host,
        why="without make, a compiler or pybind11 it ends the process",
        until="the code base goes on without them",
        without="crash",
        symptom=Symptom("sys.exit(1)"),
    )
    def compile_helper(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile the helpers; where that fails, those that are provided give the same order of samples."""
        try:
            wrapped(*args, **kwargs)
        except (SystemExit, OSError) as error:  # OSError: there is no make
            told = "megatron.data.helpers: did not compile (%s) — go on with ascend_adapt's, which order samples alike"
            logging.getLogger(__name__).warning(told, error)

    @provide(
        "megatron.data.helpers",
        host=host,
        why="it is missing where it could not be compiled",
        until="the code base has helpers in Python",
        without="crash",
    )
    def data_helpers(module: ModuleType) -> None:
        """Fill in the helpers that data sets of GPT use."""
        from ascend_adapt.data.megatron_helpers import helpers_module

        own = helpers_module(module.__name__)
        vars(module).update({name: value for name, value in vars(own).items() if not name.startswith("__")})

    return compile_helper, data_helpers
