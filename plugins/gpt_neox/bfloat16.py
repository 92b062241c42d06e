"""bfloat16 as GPT-NeoX once asked for it: a section fp16 whose type is bfloat16 (bf16_125M.yml, pythia/1B.yml).

Its fork of DeepSpeed read the type up to DeeperSpeed v1.0 (deepspeed 0.3.15); DeepSpeed never did.
"""

from __future__ import annotations

import inspect
from typing import Any

from ascend_adapt import Symptom, wrap


def asks_for_bfloat16(section: Any) -> bool:
    """Return whether a section fp16 says that it is one of bfloat16."""
    return isinstance(section, dict) and section.get("type") == "bfloat16"


def as_bf16(section: dict[str, Any]) -> dict[str, Any]:
    """Return the section bf16 that such a section fp16 stands for: nothing of it holds there but enabled."""
    return {"enabled": section.get("enabled", False)}


@wrap(
    "deepspeed.runtime.config:DeepSpeedConfig._initialize_params",
    host="gpt-neox",
    requires="deepspeed>=0.6",
    why="a section fp16 of type bfloat16 is v2.0's bfloat16: DeepSpeed takes it for fp16, and v2.0's job ends where "
    "the two meet (seen on 0.9.2); since 0.17.1 it refuses the section",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("get_fp16_enabled(param_dict)", "get_float16_config(param_dict)"),
)
def fp16_of_bfloat16(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Read the section as bf16, unless there is one; the caller's configuration stays as it is."""
    call = inspect.signature(wrapped).bind(*args, **kwargs)
    whole = call.arguments["param_dict"]
    if asks_for_bfloat16(whole.get("fp16")):
        others = {name: value for name, value in whole.items() if name != "fp16"}
        call.arguments["param_dict"] = {"bf16": as_bf16(whole["fp16"]), **others}
    wrapped(*call.args, **call.kwargs)


def reads_the_type(original: Any) -> str:
    """Return why nothing is needed in v2.0, which reads the type and knows no section bf16, or an empty text."""
    code = original.__code__
    is_v2 = "type" in code.co_consts and "bf16" not in code.co_names
    return "its precision is that of the type" if is_v2 else ""


@wrap(
    "megatron.neox_arguments.arguments:NeoXArgs.calculate_derived",
    host="gpt-neox",
    unless=reads_the_type,
    why="pythia/1B.yml says bfloat16 as the type of its section fp16, which the newest takes for fp16",
    until="GPT-NeoX's configurations say bf16 where they mean it",
    without="wrong numbers",
    symptom=Symptom('self.bf16.get("enabled", False)'),
)
def newest_reads_the_type(wrapped: Any, instance: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> None:
    """Make a section bf16 of a section fp16 of type bfloat16, unless there is one, before precision is derived."""
    if asks_for_bfloat16(instance.fp16):
        section, instance.fp16 = instance.fp16, None
        instance.bf16 = instance.bf16 or as_bf16(section)
    wrapped(*args, **kwargs)
