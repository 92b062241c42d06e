"""aten kernels of the emulated device: each operator runs the CPU kernel on the memory of the npu tensors.

torch_npu's kernels would make CANN compile and launch an operator. This module overrides each kernel that computes;
torch_npu still creates, views and frees tensors. If torch_npu has no kernel, it falls back to the CPU, with copies in
both directions. PyTorch cannot override that fallback for all operators at once, so these operators are registered one
by one, too. Only ranks import this module.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch
import torch_npu
from torch._subclasses.fake_tensor import FakeTensor
from torch._subclasses.functional_tensor import FunctionalTensor

from ascend_adapt.emulation import device_only, full_size, graphs, random, report, saturation, sixteen_bits
from ascend_adapt.emulation.full_size import flops, masks, remembered, shapes, values
from ascend_adapt.emulation.host_memory import as_cpu, as_npu, as_shape, empty_on_cpu, fill_stand_in
from ascend_adapt.emulation.operators import products
from ascend_adapt.emulation.registration import override
from ascend_adapt.errors import OperatorMissing
from ascend_adapt.npu_limits.limit import LimitNotKept

# torch_npu itself creates, shares, resizes and casts tensors, so that a rehearsal tests its allocator, storages and
# rules (a cast to float64 gives float32). It also chooses the attention variant and calls it through the dispatcher.
_OF_TORCH_NPU = frozenset(
    (
        "_has_compatible_shallow_copy_type",
        "_pin_memory",
        "_to_copy",
        "_to_sparse",
        "convolution",
        "empty",
        "empty_like",
        "empty_strided",
        "empty_with_format",
        "empty_with_swapped_memory",
        "is_pinned",
        "is_set_to",
        "new_empty_strided",
        "record_stream",
        "resize_",
        "resize_as_",
        "scaled_dot_product_attention",
        "set_",
    )
)
# A device also reads an index from host memory.
_MAY_MIX_DEVICES = frozenset(
    (
        "_copy_from",
        "_copy_from_and_resize",
        "_index_put_impl_",
        "_unsafe_index",
        "_unsafe_index_put",
        "_foreach_addcdiv",
        "_foreach_addcdiv_",
        "_foreach_addcmul",
        "_foreach_addcmul_",
        "copy_",
        "index",
        "index_put",
        "index_put_",
    )
)
# torch_npu's autograd kernels of these operators launch directly, without redispatching to the device kernel. None of
# these operators has a gradient.
_WITHOUT_REDISPATCH = ("aten::max.out", "aten::min.out", "aten::one_hot")
# The same applies to these operators, which torch composes of others. They have gradients.
_COMPOSED = (
    *("aten::affine_grid_generator_backward", "aten::conv_tbc_backward", "aten::fill_diagonal_", "aten::nanmean.out"),
    *("aten::adaptive_avg_pool2d", "aten::multilabel_margin_loss.out", "aten::slogdet"),
)
# Operators that query or change where a tensor is stored, not its values.
_ABOUT_STORAGE = frozenset(("copy_memory_", "get_npu_format", "get_storage_size", "npu_change_data_ptr"))
_WAITS_FOR_THE_DEVICE = (torch.Tag.data_dependent_output, torch.Tag.dynamic_output_shape)
# For ``bits |= 2``, a Python kernel gets a number instead of a tensor, which torch.ops rejects for these operators.
_TAKES_TENSORS_ONLY = frozenset(
    ("bitwise_and", "bitwise_and_", "bitwise_or", "bitwise_or_", "bitwise_xor", "bitwise_xor_")
)
# Operators that accept any output with the same number of elements; other operators resize the output to their shape.
_FILLS_ITS_OUTPUT = frozenset(("arange", "linspace", "logspace", "range"))
# The shape of their result depends on values only if the index is a mask.
_BY_INDEX = frozenset(("aten::index.Tensor", "aten::_unsafe_index.Tensor"))
_sparse = torch.ops.aten._sparse_coo_tensor_unsafe
_CPU, _META = torch.device("cpu"), torch.device("meta")

_libraries: list[Any] = []


def install() -> list[str]:
    """Register a kernel for every aten operator that computes, and return the names of the operators."""
    library = _library("aten")
    of_torch_npu = _registered("PrivateUse1")
    without_kernel = _registered("CPU") - of_torch_npu
    for composite in ("ExplicitAutograd", "ExplicitAutogradNonFunctional", "ImplicitAutograd"):
        # The operator is composed of other operators on every device.
        without_kernel -= _registered(f"Composite{composite}")
    installed = []
    copies: dict[str, Callable[..., Any]] = {
        "aten::_pack_padded_sequence": _pack_padded_sequence,
        "aten::copy_": _copy_,
        "aten::_copy_from_and_resize": _copy_from_and_resize,
        "aten::_foreach_copy_": _foreach_copy_,
        "aten::clone": _clone,
        "aten::contiguous": _contiguous,
    }
    for full_name in sorted(of_torch_npu | without_kernel | copies.keys()):
        operator = find(full_name, "aten")
        if full_name in copies:
            run = copies[full_name]
        elif operator is None or _base_name(operator) in _OF_TORCH_NPU or _makes_a_view(operator):
            continue
        elif full_name in device_only.KERNELS or _has_cpu_kernel(full_name):
            run = kernel(operator, device_only.KERNELS.get(full_name), is_of_the_device=full_name in of_torch_npu)
            installed.append(full_name)
        else:
            run = _refusal(full_name)
        override(library, full_name.removeprefix("aten::"), graphs.recorded(run), "PrivateUse1")
    for full_name in _WITHOUT_REDISPATCH:
        operator = find(full_name, "aten")
        run = _composed_for_subclasses(operator, graphs.recorded(kernel(operator, device_only.KERNELS.get(full_name))))
        override(library, full_name.removeprefix("aten::"), run, "AutogradPrivateUse1")
    for full_name in _COMPOSED:
        composition = device_only.COMPOSITIONS.get(full_name, find(full_name, "aten").decompose)
        override(library, full_name.removeprefix("aten::"), composition, "AutogradPrivateUse1")
    override(library, "_coalesce", _coalesce, "SparsePrivateUse1")
    return installed


def refuse(implemented: set[str]) -> list[str]:
    """Make each torch_npu operator that is not ``implemented`` fail with its name when called; return the names."""
    library = _library("npu")
    refused = []
    for full_name in sorted(_registered("PrivateUse1")):
        operator = find(full_name, "npu")
        if operator is None or full_name in implemented or not _launches(operator):
            continue
        override(library, full_name.removeprefix("npu::"), _refusal(full_name), "PrivateUse1")
        refused.append(full_name)
    return refused


def find(full_name: str, namespace: str) -> Any:
    """Return the operator of this name (``aten::add.Tensor``), or None if ``namespace`` does not contain it."""
    if not full_name.startswith(f"{namespace}::"):
        return None
    base, _, overload = full_name.partition("::")[2].partition(".")
    packet = getattr(getattr(torch.ops, namespace), base, None)
    return getattr(packet, overload or "default", None)


def kernel(
    operator: Any, on_cpu: Callable[..., Any] | None = None, is_of_the_device: bool = True
) -> Callable[..., Any]:
    """Return a kernel that runs ``on_cpu``, or else the operator's CPU kernel, on the memory of npu tensors.

    An operator without a device kernel is counted as a CPU fallback, because torch_npu also runs it on the host on a
    real NPU.
    """
    count = report.operator if is_of_the_device else report.on_the_host
    name, base = operator.name(), _base_name(operator)
    mixes = base in _MAY_MIX_DEVICES
    is_of_lists = base.startswith("_foreach_")
    takes_tensors_only = base in _TAKES_TENSORS_ONLY and "Scalar" not in name
    waits = any(tag in operator.tags for tag in _WAITS_FOR_THE_DEVICE)
    draws = torch.Tag.nondeterministic_seeded in operator.tags
    needs_generator = on_cpu is None and any(
        one.name == "generator" and not one.has_default_value() for one in operator._schema.arguments
    )
    outs = [one.name for one in operator._schema.arguments if one.kwarg_only and _is_written(one)]
    places = [place for place, one in enumerate(operator._schema.arguments) if not one.kwarg_only and _is_written(one)]
    computes = saturation.computes(base)

    run_on_host = sixteen_bits.computed(on_cpu or operator, operator._schema)

    def run(*args: Any, **kwargs: Any) -> Any:
        if is_of_lists and len({one.device for one in _first_list(args)}) > 1:
            return _entry_by_entry(operator, args, kwargs)
        count(name)
        if waits and not (name in _BY_INDEX and not _has_mask(args)):
            report.synchronisation(name)
        only_shapes = full_size.is_on() and not shapes.is_computed(operator, run_on_host, args, kwargs)
        if only_shapes:
            written = [args[place] for place in places if place < len(args)] + [kwargs.get(out) for out in outs]
            masks.forget(remembered.tensors_in(written))
        call = _Call(name, mixes, only_shapes)
        # A cached result has the shapes of the first call, so do not cache results whose shapes depend on values.
        key = None
        if only_shapes and not outs and not waits and not _has_mask(args):
            everything = [*args, *kwargs.values()]
            key = remembered.key_of(name, [*everything, *kwargs])
            for tensor in remembered.tensors_in(everything):
                call.see(tensor)
            device = call.device()
            seen, result = remembered.result_of(key, everything, lambda meta: as_npu(meta, device, operator=name))
            if seen:
                return result
        given = {one: kwargs.pop(one) for one in outs if isinstance(kwargs.get(one), torch.Tensor)}
        host_args = [call.to_host(value) for value in args]
        if takes_tensors_only:
            host_args = [torch.tensor(one) if isinstance(one, int) else one for one in host_args]
        host_kwargs = {key: call.to_host(value) for key, value in kwargs.items()}
        # The CPU kernel resizes its output. Only torch_npu may resize npu tensors, so the kernel gets an empty output.
        host_outs = {one: empty_on_cpu(value.dtype) for one, value in given.items()}
        if only_shapes:
            host_outs = {one: value.to("meta") for one, value in host_outs.items()}
        for value in given.values():
            call.see(value)
        device = call.device()
        _check_dtypes(name, host_args)
        generator = host_kwargs.pop("generator", None)
        if needs_generator:
            host_kwargs["generator"] = None
        with random.drawn_from(generator, device) if draws else nullcontext():
            if only_shapes:
                written = [host_args[place] for place in places if place < len(host_args)]
                result = shapes.of(operator, run_on_host, host_args, {**host_kwargs, **host_outs}, written)
            else:
                with values.computing:
                    result = run_on_host(*host_args, **host_kwargs, **host_outs)
        if operator is torch.ops.aten._convolution.default:
            # NPUs write NCHW; the CPU follows an input that lies in channels-last order, for which an NPU has no gelu.
            result = result.contiguous()
        if full_size.is_on():
            operations = flops.of(name, args, result)
            report.operations(operations)
            if key is not None:
                remembered.remember(key, [*args, *kwargs.values()], result, operations, call.original_of)
        if computes and not only_shapes:
            results = (result, [host_args[place] for place in places if place < len(host_args)])
            _check_dtypes(name, results)
            if saturation.is_on():
                saturation.saturate(results)
        for one, value in given.items():
            _write(value, host_outs[one], name, keeps_shape=base in _FILLS_ITS_OUTPUT)
            call.is_alias_of(host_outs[one], value)
        return call.to_device(result, device)

    return masks.noting(base, run, as_cpu) if full_size.is_on() else run


def _first_list(args: tuple[Any, ...]) -> Sequence[torch.Tensor]:
    """Return the list that an operator over lists gets, which is the exponent of _foreach_pow(2.0, exponents)."""
    return next(one for one in args if isinstance(one, (list, tuple)))


def _entry_by_entry(operator: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    """Return the results of an operator over lists whose entries are on several devices.

    torch_npu computes such entries one by one, each on its own device.
    """
    number = len(_first_list(args))

    def entry(value: Any, index: int) -> Any:
        is_scalar_of_each = isinstance(value, torch.Tensor) and value.dim() == 1 and len(value) == number
        is_list = isinstance(value, (list, tuple)) and len(value) == number
        return value[index : index + 1] if is_list or is_scalar_of_each else value

    found = [
        operator(*(entry(one, index) for one in args), **{key: entry(one, index) for key, one in kwargs.items()})
        for index in range(number)
    ]
    return [one for (one,) in found] if operator._schema.returns else None


def _composed_for_subclasses(operator: Any, run: Callable[..., Any]) -> Callable[..., Any]:
    """Return a kernel that is a composition for subclasses without memory: torch's own, or for DTensor op-plugin's."""
    of_subclass = device_only.OF_SUBCLASSES.get(operator.name(), operator.decompose)

    def call(*args: Any, **kwargs: Any) -> Any:
        if isinstance(args[0], (FakeTensor, FunctionalTensor)):  # where torch.compile traces
            return operator.decompose(*args, **kwargs)
        has_memory = not torch._C._dispatch_keys(args[0]).has(torch._C.DispatchKey.Python)
        return (run if has_memory else of_subclass)(*args, **kwargs)

    return call


def _check_dtypes(operator: str, tensors: Any) -> None:
    """Check that the device computes with the dtypes of an operator's tensors.

    Raises:
        OperatorLimit: the device does not compute with one of the dtypes.
    """
    try:
        products.require(False, saturation.floats(tensors))
    except LimitNotKept as broken:
        raise report.violation(operator, broken.limit.text, broken.observed) from None


class _Call:
    """One kernel call: maps each host alias to the npu tensor whose memory it shares."""

    def __init__(self, name: str, mixes: bool, only_shapes: bool) -> None:
        self._name, self._mixes, self._only_shapes = name, mixes, only_shapes
        self._tensors: dict[int, tuple[torch.Tensor, torch.Tensor]] = {}
        self._device: torch.device | None = None
        self._stranger: torch.device | None = None

    def see(self, tensor: torch.Tensor) -> None:
        """Record the device of a tensor argument."""
        device = tensor.device
        if device.type == "npu":
            if self._device is not None and self._device != device:
                self._stranger = device
            self._device = self._device or device
        elif tensor.dim() > 0:
            self._stranger = device

    def is_alias_of(self, alias: torch.Tensor, tensor: torch.Tensor) -> None:
        """Return ``tensor`` as the result when a kernel returns ``alias``."""
        self._tensors[id(alias)] = alias, tensor

    def original_of(self, alias: torch.Tensor) -> torch.Tensor | None:
        """Return the call's tensor whose memory an alias shares, or None."""
        known = self._tensors.get(id(alias))
        return None if known is None else known[1]

    def to_host(self, value: Any) -> Any:
        """Return an argument with npu tensors replaced by host aliases, and npu devices by the CPU."""
        if isinstance(value, torch.Tensor):
            self.see(value)
            if value.device.type != "npu" and not (self._only_shapes and value.dim() > 0):
                return value
            alias = as_shape(value) if self._only_shapes else as_cpu(value)
            self.is_alias_of(alias, value)
            return alias
        if isinstance(value, (list, tuple)):
            return [self.to_host(one) for one in value]
        if isinstance(value, torch.device) and value.type == "npu":
            self._device = self._device or _with_index(value)
            return _META if self._only_shapes else _CPU
        return value

    def device(self) -> torch.device:
        """Return the device on which the call runs.

        Raises:
            RuntimeError: the tensors of the call are on several devices.
        """
        if self._stranger is not None and self._device is not None and not self._mixes:
            raise RuntimeError(
                f"Expected all tensors to be on the same device, but found at least two devices, {self._device} and "
                f"{self._stranger}! (when checking arguments of {self._name})"
            )
        return self._device or _with_index(torch.device("npu"))

    def to_device(self, value: Any, device: torch.device) -> Any:
        """Move a result to the device: replace aliases by their npu tensors, and copy new tensors."""
        if isinstance(value, torch.Tensor):
            known = self._tensors.get(id(value))
            if known is None and value.layout == torch.sparse_coo:
                parts = (as_npu(part, device, operator=self._name) for part in (value._indices(), value._values()))
                return _sparse(*parts, value.size(), is_coalesced=value.is_coalesced())
            if known is None and (value.layout != torch.strided or value.is_quantized):
                report.missing(self._name)
                kind = "quantized" if value.is_quantized else str(value.layout).removeprefix("torch.")
                raise OperatorMissing(
                    f"{self._name}: its result is {kind}, expected a dense or sparse_coo tensor, the only kinds that "
                    "the emulated NPU supports — use a variant of the model without it for the rehearsal"
                )
            return known[1] if known is not None else as_npu(value, device, operator=self._name)
        if isinstance(value, (list, tuple)):
            return type(value)(self.to_device(one, device) for one in value)
        return value


def _has_mask(args: tuple[Any, ...]) -> bool:
    indices = args[1] if len(args) > 1 and isinstance(args[1], (list, tuple)) else ()
    return any(isinstance(one, torch.Tensor) and one.dtype in (torch.bool, torch.uint8) for one in indices)


def _refusal(full_name: str) -> Callable[..., Any]:
    def refuse_call(*args: Any, **kwargs: Any) -> Any:
        report.missing(full_name)
        raise OperatorMissing(
            f"{full_name}: the emulated NPU lacks it, a real one has it — use a variant of the model without it "
            "for the rehearsal, or register a kernel with torch.library"
        )

    return refuse_call


def _copy_(self: torch.Tensor, source: torch.Tensor, non_blocking: bool = False) -> torch.Tensor:
    report.operator("aten::copy_")
    if self.device.type == "cpu" and source.device.type == "npu":
        # Raises an error for a storage that torch_npu did not allocate, as torch_npu's copy does.
        torch_npu.get_npu_format(source)
    if self.device.type == "cpu" and not non_blocking:
        report.synchronisation("copy to the host", self.numel() * self.element_size())
    if self.dtype != source.dtype and source.device.type == "npu":
        _check_dtypes("aten::copy_", (self, source))
    if full_size.is_on() and not values.all_hold((self, source)):
        shapes.check_copy(self, source)
        masks.forget([self])
        if values.hold(self):
            as_cpu(self).fill_(values.stand_in("aten::copy_", self.dtype))
        return self
    with values.computing:
        as_cpu(self).copy_(as_cpu(source))
    return self


def _foreach_copy_(self: list[torch.Tensor], src: list[torch.Tensor], non_blocking: bool = False) -> None:
    for one, source in zip(self, src, strict=True):
        _copy_(one, source, non_blocking)


def _pack_padded_sequence(input: torch.Tensor, lengths: torch.Tensor, batch_first: bool) -> tuple[torch.Tensor, ...]:
    """Return the padded data [T * B, ...], and the batch sizes on the host, where the lengths are.

    Source: op-plugin@517f2e7 opapi/PackPaddedSequenceKernelNpuOpApi.cpp; _pad_packed_sequence expects this form.
    """
    if lengths.device.type != "cpu":
        raise RuntimeError(f"'lengths' argument should be a CPU tensor, but got {lengths.device} tensor")
    by_time = input.transpose(0, 1) if batch_first else input
    sizes = torch.ops.aten._pack_padded_sequence(torch.empty(by_time.shape[:2], device="cpu"), lengths, False)[1]
    return by_time[: len(sizes)].contiguous().flatten(0, 1), sizes


def _coalesce(self: torch.Tensor) -> torch.Tensor:
    """Merge duplicate indices of a sparse tensor. Source: op-plugin@517f2e7 sparse/SparseCoalesceKernelOpApi.cpp."""
    report.operator("aten::_coalesce")
    report.synchronisation("aten::_coalesce")
    parts = (as_cpu(self._indices()), as_cpu(self._values()))
    return _Call("aten::_coalesce", False, False).to_device(_sparse(*parts, self.size()).coalesce(), self.device)


def _copy_from_and_resize(self: torch.Tensor, dst: torch.Tensor) -> torch.Tensor:
    dst.resize_(self.shape)
    return _copy_(dst, self)


def _clone(self: torch.Tensor, *, memory_format: torch.memory_format | None = None) -> torch.Tensor:
    report.operator("aten::clone")
    alias = as_shape(self) if full_size.is_on() and not values.hold(self) else as_cpu(self)
    with _launch("aclnnInplaceCopy"):
        return as_npu(alias.clone(memory_format=memory_format or torch.preserve_format), self.device)


def _launch(kernel_name: str) -> AbstractContextManager[Any]:
    """Record the kernel that torch_npu would launch, if a profiler is active."""
    return torch.autograd.profiler.record_function(kernel_name) if torch.autograd._profiler_enabled() else nullcontext()


def _contiguous(self: torch.Tensor, *, memory_format: torch.memory_format = torch.contiguous_format) -> torch.Tensor:
    if self.is_contiguous(memory_format=memory_format):
        return self
    return torch.clone(self, memory_format=memory_format)


def _write(tensor: torch.Tensor, result: torch.Tensor, operator: str, keeps_shape: bool) -> None:
    """Write an operator's result into an npu tensor, which gets the result's shape unless it keeps its own."""
    if keeps_shape and tensor.numel() == result.numel():
        result = result.view(tensor.shape)
    if tensor.shape != result.shape:
        tensor.resize_(result.shape)
    if result.is_meta:
        fill_stand_in(tensor, operator)
    else:
        as_cpu(tensor).copy_(result)


def _with_index(device: torch.device) -> torch.device:
    return device if device.index is not None else torch.device("npu", torch.npu.current_device())


def _has_cpu_kernel(full_name: str) -> bool:
    return bool(torch._C._dispatch_has_computed_kernel_for_dispatch_key(full_name, "CPU"))


def _registered(key: str) -> set[str]:
    return set(torch._C._dispatch_get_registrations_for_dispatch_key(key))


def _library(namespace: str) -> Any:
    # Registrations live as long as the Library object that created them.
    _libraries.append(torch.library.Library(namespace, "IMPL"))
    return _libraries[-1]


def _base_name(operator: Any) -> str:
    return str(operator.name()).partition("::")[2].partition(".")[0]


def _is_written(argument: Any) -> bool:
    return argument.alias_info is not None and argument.alias_info.is_write


def _makes_a_view(operator: Any) -> bool:
    """Return whether an operator makes or changes a view, without changing the memory."""
    if torch.Tag.inplace_view in operator.tags:
        return True
    return any(one.alias_info is not None and not one.alias_info.is_write for one in operator._schema.returns)


def _launches(operator: Any) -> bool:
    """Return whether an operator of torch_npu computes with tensors, rather than querying the runtime."""
    if _base_name(operator) in _ABOUT_STORAGE:
        return False
    return any("Tensor" in str(one.type) for one in (*operator._schema.arguments, *operator._schema.returns))
