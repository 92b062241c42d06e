"""The C++ helpers of a code base's data sets, which it compiles into its own folder when training begins."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from ascend_adapt import Patch, Symptom, provide, wrap


def helpers_of_gpt(
    host: str | tuple[str, ...],
    *,
    module: str = "megatron.data.helpers",
    name: str = "data_helpers",
    requires: str | tuple[str, ...] = (),
    sample_index_dtype: str = "int32",
) -> Patch:
    """Return the patch that provides the helpers of GPT's data sets, in numpy, where none are compiled.

    ``sample_index_dtype`` is what the code base's own build_sample_idx returns.
    """

    @provide(
        module,
        name=name,
        requires=requires,
        host=host,
        why="it is missing where it is not compiled",
        until="the code base has helpers in Python",
        without="crash",
        symptom=Symptom(reason="whether a module is compiled is no matter of the source"),
    )
    def data_helpers(missing: ModuleType) -> None:
        """Fill in the helpers that data sets of GPT use."""
        from ascend_adapt.data.megatron_helpers import helpers_module

        own = helpers_module(missing.__name__, sample_index_dtype=sample_index_dtype)
        vars(missing).update({name: value for name, value in vars(own).items() if not name.startswith("__")})

    return data_helpers


def compiling_nothing(compiling: str, *, host: str | tuple[str, ...]) -> Patch:
    """Return the patch for a code base that has data sets of GPT and no others: ``compiling`` does nothing."""

    @wrap(
        compiling,
        host=host,
        why="without make, a compiler or pybind11 it ends the process; several hosts compile into one shared folder "
        "at a time; and what is linked with a libstdc++ of its own crashes beside torch's",
        until="the code base has helpers in Python",
        without="crash",
        symptom=Symptom("sys.exit(1)"),
    )
    def compile_helper(wrapped: Any, instance: None, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
        """Compile nothing: what was compiled before is used, else what is provided; both order samples alike."""

    return compile_helper


def compiling_if_possible(
    compiling: str, *, host: str | tuple[str, ...], requires: str | tuple[str, ...] = ()
) -> Patch:
    """Return the patch for a code base whose other data sets (BERT's, T5's) need what ``compiling`` compiles."""

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
            told = "%s: made nothing (%s) — go on with ascend_adapt's helpers, which order samples alike"
            logging.getLogger(__name__).warning(told, compiling, error)

    return compile_helper
