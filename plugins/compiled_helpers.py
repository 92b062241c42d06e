"""C++ dataset helpers, which a code base compiles into its folder when training starts."""

from __future__ import annotations

import logging
from types import ModuleType

from ascend_adapt import Call, Patch, Symptom, provide, wrap


def helpers_of_gpt(
    host: str | tuple[str, ...],
    *,
    module: str = "megatron.data.helpers",
    name: str = "data_helpers",
    requires: str | tuple[str, ...] = (),
    sample_index_dtype: str = "int32",
) -> Patch:
    """Return the patch that provides the GPT dataset helpers in numpy if none are compiled.

    ``sample_index_dtype`` is the dtype that the code base's build_sample_idx returns.
    """

    @provide(
        module,
        name=name,
        requires=requires,
        host=host,
        why="the module is missing unless it was compiled",
        until="the code base has helpers in Python",
        without="crash",
        symptom=Symptom(reason="the source does not show whether a module is compiled"),
    )
    def data_helpers(missing: ModuleType) -> None:
        """Provide the helpers of GPT datasets."""
        from ascend_adapt.data.megatron_helpers import helpers_module

        own = helpers_module(missing.__name__, sample_index_dtype=sample_index_dtype)
        vars(missing).update({name: value for name, value in vars(own).items() if not name.startswith("__")})

    return data_helpers


def compiling_nothing(compiling: str, *, host: str | tuple[str, ...]) -> Patch:
    """Return the patch for a code base that only has GPT datasets, in which the function ``compiling`` does nothing."""

    @wrap(
        compiling,
        host=host,
        why="without make, a compiler or pybind11, it exits the process; several hosts compile into one shared folder "
        "at the same time; a helper linked with its own libstdc++ crashes together with torch's",
        until="the code base has helpers in Python",
        without="crash",
        symptom=Symptom("sys.exit(1)"),
    )
    def compile_helper(call: Call) -> None:
        """Compile nothing: use a helper compiled earlier, or else the provided one; both give the same sample order."""

    return compile_helper


def compiling_if_possible(
    compiling: str, *, host: str | tuple[str, ...], requires: str | tuple[str, ...] = ()
) -> Patch:
    """Return the patch for a code base whose BERT and T5 datasets need the helpers that ``compiling`` compiles."""

    @wrap(
        compiling,
        requires=requires,
        host=host,
        why="it exits the process without make, a compiler or pybind11, or if its folder is not writable",
        until="the code base continues without them",
        without="crash",
        symptom=Symptom("sys.exit(1)"),
    )
    def compile_helper(call: Call) -> None:
        """Compile the helpers; if that fails, use the provided ones, which give the same sample order."""
        try:
            call.proceed()
        except (SystemExit, OSError) as error:  # An OSError means that make is missing.
            message = "%s: compiled nothing (%s) — continuing with ascend_adapt's helpers, in the same sample order"
            logging.getLogger(__name__).warning(message, compiling, error)

    return compile_helper
