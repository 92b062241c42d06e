"""The C++ helpers of a code base's data sets, which it compiles into its own folder when training begins."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from ascend_adapt import Patch, Symptom, provide, wrap


def compiled_helpers(
    compiling: str,
    module: str = "megatron.data.helpers",
    *,
    host: str | tuple[str, ...],
    requires: str | tuple[str, ...] = (),
    sample_index_dtype: str = "int32",
) -> tuple[Patch, Patch]:
    """Return the patches by which a code base trains on where ``compiling``, its function, fails to make ``module``.

    Args:
        sample_index_dtype: what the code base's plain build_sample_idx gives; see data/megatron_helpers.py.
    """

    @wrap(
        compiling,
        requires=requires,
        host=host,
        why="it ends the process without make, a compiler or pybind11, or where its folder may not be written to",
        until="the code base goes on without them",
        without="crash",
        symptom=Symptom("sys.exit(1)"),
    )
    def compile_helper(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile the helpers; where that fails, those that are provided give the same order of samples."""
        try:
            wrapped(*args, **kwargs)
        except (SystemExit, OSError) as error:  # OSError: there is no make
            told = "%s: did not compile (%s) — go on with ascend_adapt's, which order samples alike"
            logging.getLogger(__name__).warning(told, module, error)

    @provide(
        module,
        requires=requires,
        host=host,
        why="it is missing where it could not be compiled, as in a source archive",
        until="the code base has helpers in Python",
        without="crash",
        symptom=Symptom(reason="whether a module is compiled is no matter of the source"),
    )
    def data_helpers(missing: ModuleType) -> None:
        """Fill in the helpers that data sets of GPT use."""
        from ascend_adapt.data.megatron_helpers import helpers_module

        own = helpers_module(missing.__name__, sample_index_dtype=sample_index_dtype)
        vars(missing).update({name: value for name, value in vars(own).items() if not name.startswith("__")})

    return compile_helper, data_helpers
