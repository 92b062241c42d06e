"""The C++ helpers of the data sets, which are compiled into the checkout when training begins."""

from __future__ import annotations

import logging
from types import ModuleType
from typing import Any

from ascend_adapt import Symptom, provide, wrap

from ..code_bases import BIGSCIENCE, MEGATRON_DEEPSPEED

HOSTS = (BIGSCIENCE, MEGATRON_DEEPSPEED)


@wrap(
    "megatron.data.dataset_utils:compile_helper",
    host=HOSTS,
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
        logging.getLogger(__name__).warning(
            "megatron.data.helpers: did not compile (%s) — go on with ascend_adapt's, which order samples alike", error
        )


@provide(
    "megatron.data.helpers",
    host=HOSTS,
    why="it is missing where it could not be compiled",
    until="the code base has helpers in Python",
    without="crash",
)
def data_helpers(module: ModuleType) -> None:
    """Fill in the helpers that data sets of GPT use."""
    from ascend_adapt.data.megatron_helpers import helpers_module

    own = helpers_module(module.__name__)
    vars(module).update({name: value for name, value in vars(own).items() if not name.startswith("__")})


PATCHES = (compile_helper, data_helpers)
