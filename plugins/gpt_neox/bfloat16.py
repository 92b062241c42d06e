"""Support for GPT-NeoX's old form of bfloat16: a section fp16 of type bfloat16 (bf16_125M.yml, pythia/1B.yml).

GPT-NeoX's fork of DeepSpeed supported this type up to DeeperSpeed v1.0 (deepspeed 0.3.15). DeepSpeed never did.
"""

from __future__ import annotations

from typing import Any

from ascend_adapt import Call, Symptom, wrap


def asks_for_bfloat16(section: Any) -> bool:
    """Return whether a section fp16 requests bfloat16."""
    return isinstance(section, dict) and section.get("type") == "bfloat16"


def as_bf16(section: dict[str, Any]) -> dict[str, Any]:
    """Return the equivalent section bf16, to which only ``enabled`` applies."""
    return {"enabled": section.get("enabled", False)}


@wrap(
    "deepspeed.runtime.config:DeepSpeedConfig._initialize_params",
    host="gpt-neox",
    requires="deepspeed>=0.6",
    why="v2.0 requests bfloat16 as a section fp16 of type bfloat16: DeepSpeed reads it as fp16, and the job fails "
    "where both dtypes meet (seen on 0.9.2); since 0.17.1 DeepSpeed refuses the section",
    until="GPT-NeoX v2.0 is out of use",
    without="crash",
    symptom=Symptom("get_fp16_enabled(param_dict)", "get_float16_config(param_dict)"),
)
def bfloat16_in_fp16_section(call: Call) -> None:
    """Read the section as bf16, unless a section bf16 exists; do not change the caller's configuration."""
    whole = call["param_dict"]
    if asks_for_bfloat16(whole.get("fp16")):
        others = {name: value for name, value in whole.items() if name != "fp16"}
        call["param_dict"] = {"bf16": as_bf16(whole["fp16"]), **others}
    call.proceed()


def reads_the_type(original: Any) -> str:
    """Return why the patch is not needed in v2.0, which reads the type and has no section bf16, else ``""``."""
    code = original.__code__
    is_v2 = "type" in code.co_consts and "bf16" not in code.co_names
    return "GPT-NeoX reads the precision from the type" if is_v2 else ""


@wrap(
    "megatron.neox_arguments.arguments:NeoXArgs.calculate_derived",
    host="gpt-neox",
    unless=reads_the_type,
    why="pythia/1B.yml has a section fp16 of type bfloat16, which the newest GPT-NeoX reads as fp16",
    until="GPT-NeoX's configurations use the section bf16",
    without="wrong numbers",
    symptom=Symptom('self.bf16.get("enabled", False)'),
)
def fp16_section_type(call: Call) -> None:
    """Convert a section fp16 of type bfloat16 into a section bf16, unless one exists, before precision is derived."""
    settings = call.instance
    if asks_for_bfloat16(settings.fp16):
        section, settings.fp16 = settings.fp16, None
        settings.bf16 = settings.bf16 or as_bf16(section)
    call.proceed()
