"""Makes device kernels of ``npu::`` operators from functions on CPU tensors.

torch_npu's autograd nodes remain; only the device kernels that they call are replaced.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass
from typing import Any

import torch

from ascend_adapt.emulation import report
from ascend_adapt.emulation.operators import products
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits.limit import LimitNotKept

Function = Callable[..., Any]


@dataclass(frozen=True)
class OperatorKernel:
    """The arithmetic of one operator on CPU tensors that share memory with the caller's npu tensors.

    ``function`` names its parameters as torch_npu's codegen yaml does, and takes only the arguments that it needs, by
    name. So one function supports every release: arguments that a release lacks are not passed, and extra results are
    dropped.
    """

    operator: str
    """Name in the npu namespace, including the overload if it has one: ``npu_apply_adam_w.out``."""
    function: Function
    host: Collection[str] = ()
    """Tensor arguments that are on the host even with a real NPU."""
    host_results: Collection[int] = ()
    """Indices of results that are on the host."""
    dispatch_key: str = "PrivateUse1"
    takes: Collection[str] = ()
    """Parameter names of a function that takes them as ``**given``."""
    only_checks: bool = False
    """Whether the function only checks its arguments, and torch_npu's own kernel computes the result."""
    needs_a2: bool = False
    """Whether devices before the Atlas A2 lack the operator."""
    is_composed: bool = False
    """Whether the function is called with NPU tensors, and computes with other operators."""


def kernel(
    *operators: str,
    host: Collection[str] = (),
    host_results: Collection[int] = (),
    dispatch_key: str = "PrivateUse1",
    takes: Collection[str] = (),
    only_checks: bool = False,
    needs_a2: bool = False,
    is_composed: bool = False,
) -> Callable[[Function], Function]:
    """Decorator that marks a function as the kernel of these operators; ``kernels_of`` finds it in its module."""

    def mark(function: Function) -> Function:
        vars(function)["kernels"] = [
            OperatorKernel(
                operator, function, host, host_results, dispatch_key, takes, only_checks, needs_a2, is_composed
            )
            for operator in operators
        ]
        return function

    return mark


def kernels_of(module: object) -> Iterable[OperatorKernel]:
    """Yield the kernels that a module declares, in their order."""
    for value in vars(module).values():
        yield from getattr(value, "kernels", ())


def boxed(entry: OperatorKernel, schema: torch.FunctionSchema) -> Function:
    """Return the function for torch.library: it counts calls, binds arguments by schema, and converts tensors."""
    # These imports need the emulated device; the declarations in this module do not.
    from ascend_adapt.emulation import full_size, saturation
    from ascend_adapt.emulation.full_size import flops, masks, remembered, values
    from ascend_adapt.emulation.host_memory import as_cpu, as_npu, as_shape

    parameters = set(entry.takes or inspect.signature(entry.function).parameters)
    name = f"npu::{entry.operator}"
    written = [one.name for one in schema.arguments if one.alias_info is not None and one.alias_info.is_write]

    def call(*args: Any, **kwargs: Any) -> Any:
        report.operator(name)
        given = _bound(name, schema, parameters, args, kwargs)
        device = _device(name, entry, given)
        only_shapes = full_size.is_on() and not values.all_hold(given.values())
        key = None
        if only_shapes:
            masks.forget(remembered.tensors_in(given[one] for one in written if one in given))
            key = remembered.key_of(name, [*given.values(), *given])
            seen, again = remembered.result_of(key, given.values(), lambda meta: as_npu(meta, device, name))
            if seen:
                return again
        originals: dict[int, torch.Tensor] = {}

        def to_cpu(tensor: torch.Tensor) -> torch.Tensor:
            alias = as_shape(tensor) if only_shapes and tensor.device.type == "npu" else as_cpu(tensor)
            if tensor.requires_grad and alias is not tensor:
                alias.requires_grad_()
            originals[id(alias)] = tensor
            return alias

        def to_npu(index: int, result: Any) -> Any:
            if not isinstance(result, torch.Tensor) or index in entry.host_results:
                return result
            return originals[id(result)] if id(result) in originals else as_npu(result.detach(), device, name)

        arguments = {key: _mapped(to_cpu, value) for key, value in given.items()}
        flops_before = report.tally.flops
        try:
            products.require(entry.needs_a2, originals.values())
            # As in torch_npu's kernels, random numbers come from the generator of this device.
            where = torch.device("meta") if only_shapes else values.computing
            with torch.no_grad(), torch.npu.device(device), where:
                results = entry.function(**arguments)
            products.require(False, saturation.floats(results))
        except LimitNotKept as broken:
            raise report.violation(name, broken.limit.text, broken.observed) from None
        if full_size.is_on():
            report.operations(flops.of(name, args, results))
            if key is not None:
                kept = results if not isinstance(results, tuple) else results[: len(schema.returns)]
                operations = report.tally.flops - flops_before
                remembered.remember(key, given.values(), kept, operations, lambda one: originals.get(id(one)))
        if saturation.is_on() and not only_shapes:
            saturation.saturate((results, list(arguments.values()) if written else ()))
        if isinstance(results, list):
            return [to_npu(0, result) for result in results]
        if not isinstance(results, tuple):
            return to_npu(0, results)
        return tuple(to_npu(index, result) for index, result in enumerate(results[: len(schema.returns)]))

    return call


def on_device(entry: OperatorKernel, schema: torch.FunctionSchema, own: Function | None = None) -> Function:
    """Return the function for torch.library that gets npu tensors.

    It is composed of other operators, or checks its arguments and then calls torch_npu's ``own`` kernel.
    """
    parameters = set(inspect.signature(entry.function).parameters)
    name = f"npu::{entry.operator}"

    def call(*args: Any, **kwargs: Any) -> Any:
        report.operator(name)
        given = _bound(name, schema, parameters, args, kwargs)
        device = _device(name, entry, given)
        try:
            products.require(entry.needs_a2, [one for value in given.values() for one in _tensors(value)])
            with torch.no_grad(), torch.npu.device(device):
                result = entry.function(**given)
                return result if own is None else own(*args, **kwargs)
        except LimitNotKept as broken:
            raise report.violation(name, broken.limit.text, broken.observed) from None

    return call


def parameter_of(argument: str, parameters: Collection[str]) -> str:
    """Return the parameter for an argument; torch_npu may register ``self`` of its yaml as ``input``."""
    return "self" if argument == "input" and "input" not in parameters else argument


def _tensors(value: Any) -> list[torch.Tensor]:
    return [item for item in (value if isinstance(value, list) else [value]) if isinstance(item, torch.Tensor)]


def _mapped(change: Callable[[torch.Tensor], torch.Tensor], value: Any) -> Any:
    if isinstance(value, list):
        return [_mapped(change, item) for item in value]
    return change(value) if isinstance(value, torch.Tensor) else value


def _bound(
    name: str, schema: torch.FunctionSchema, parameters: set[str], args: tuple[Any, ...], kwargs: dict[str, Any]
) -> dict[str, Any]:
    """Return the arguments of a call, keyed by the kernel's parameter names, with defaults from the schema."""
    values = {}
    for index, argument in enumerate(schema.arguments):
        default = argument.default_value
        value = args[index] if index < len(args) else kwargs.get(argument.name, default)
        key = parameter_of(argument.name, parameters)
        if key in parameters:
            values[key] = value
        elif value is not None and value != default:
            raise OperatorMissing(
                f"{name}: {argument.name}={value!r}, expected its default {default!r} — "
                "the emulation does not implement this argument"
            )
    return values


def _device(name: str, entry: OperatorKernel, values: dict[str, Any]) -> torch.device:
    """Return the device on which all tensors of a call must be.

    Raises:
        RuntimeError: the tensors are on several devices, or on no NPU; torch_npu's kernels make the same check.
    """
    devices: dict[torch.device, str] = {}
    for key, value in values.items():
        if isinstance(value, torch.Tensor) and key in entry.host:
            if value.device.type != "cpu":
                raise RuntimeError(f"{name}: {key} is on {value.device}, expected it on the CPU — move it there")
        else:
            devices.update((tensor.device, key) for tensor in _tensors(value))
    if not devices and isinstance(values.get("device"), torch.device):
        devices[values["device"]] = "device"
    npus = sorted(str(device) for device in devices if device.type == "npu")
    if len(devices) > 1 and npus:
        others = sorted(str(device) for device in devices if str(device) != npus[0])
        raise RuntimeError(  # torch's message, which some programs match.
            f"Expected all tensors to be on the same device, but found at least two devices, {npus[0]} and "
            f"{others[0]}! (when checking arguments of {name}: {_listed(devices)})"
        )
    if not npus:
        raise RuntimeError(
            f"{name}: {_listed(devices) or 'no tensor on an npu'}, expected all tensors to be on an npu — "
            "move them there"
        )
    return next(iter(devices))


def _listed(devices: dict[torch.device, str]) -> str:
    return ", ".join(f"{key} on {device}" for device, key in devices.items())
