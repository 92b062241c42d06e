"""Exceptions of this package.

    AdaptError
    ├── SettingsError            an invalid option or ASCEND_ADAPT_* value
    │   ├── EnableConflict       two calls of enable() contradict each other
    │   └── ConfigError          an invalid training configuration
    ├── PluginError              a plugin that cannot be loaded or registers something invalid
    ├── PatchError
    │   ├── PatchSpecError       an invalid declaration of a patch
    │   ├── PatchConflict        two patches that change the same place
    │   ├── PatchDrift           the target is missing or has changed
    │   ├── PatchFailed          applying raised
    │   └── PatchLost            the target was reloaded or replaced after apply
    ├── KernelError              a kernel that cannot compute a call
    │   ├── KernelArgumentError  arguments that contradict each other or the contract
    │   └── BackendUnavailable   a requested backend is missing or cannot compute the call
    ├── LaunchError              a job that cannot be planned or started
    │   └── EmulationError       an emulated NPU that cannot be built or run on this host
    ├── TrainingError            a run that cannot continue
    ├── AlignmentError           a recording that cannot be written, read or compared
    ├── CheckpointError          a checkpoint that cannot be read, converted or written
    └── DataError                invalid text or token files
        └── BadLine              an input line that is not a valid document

The emulated NPU raises these where torch_npu would raise an error, with torch_npu's exception types, so that scripts
can catch them:

    RuntimeError
    ├── OperatorLimit            a call that exceeds a documented limit of an NPU operator
    └── NotImplementedError
        └── OperatorMissing      an operator that the emulated NPU lacks

No exception is a subclass of ImportError, because upstream code wraps imports in ``except ImportError`` and would
swallow it. Messages read *subject: observed, expected — next step*.
"""

import errno
import os
import re
import resource
from collections.abc import Callable, Iterable
from typing import TypeVar

_Item = TypeVar("_Item")
_Result = TypeVar("_Result")


def one_line(error: BaseException) -> str:
    """Return the message of an exception on one line."""
    return " ".join(str(error).split())


def type_and_message(error: BaseException) -> str:
    """Return the type and message of an exception on one line."""
    return ": ".join(filter(None, (type(error).__name__, one_line(error))))


def system_error(error: OSError) -> str:
    """Return the operating system's message. For an exhausted limit, add its value and how to raise it."""
    text = error.strerror or one_line(error)
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{text} (this process may have {limit}; raise the limit, such as with `ulimit -n 65536`)"
    if error.errno == errno.EAGAIN:
        limit = resource.getrlimit(resource.RLIMIT_NPROC)[0]
        own = "" if limit == resource.RLIM_INFINITY else f"this user may have {limit} processes, see `ulimit -u`; "
        return f"{text} ({own}a container may have fewer, see pids.max of its cgroup)"
    if error.errno == errno.ENFILE:
        return f"{text} (on the entire host; see `sysctl fs.file-max`)"
    return text


def behind(error: BaseException) -> OSError | None:
    """Return the operating system's error behind an exception of torch's or safetensors' writer."""
    found: BaseException | None = error
    while found is not None and not isinstance(found, OSError):
        if stated := re.search(r"\(os error (\d+)\)", str(found)):
            return OSError(int(stated[1]), os.strerror(int(stated[1])))
        found = found.__cause__ or found.__context__
    return found


def ran_out(error: OSError) -> bool:
    """Return whether an error means that a resource is exhausted; the file itself may be valid."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class AdaptError(Exception):
    """Base class of all errors above."""


class SettingsError(AdaptError):
    """Invalid setting."""


def of_each(read: Callable[[_Item], _Result], items: Iterable[_Item]) -> list[_Result]:
    """Return the result of ``read`` for each item.

    Raises:
        SettingsError: items could not be read; the message lists all problems.
    """
    results, faults = [], []
    for item in items:
        try:
            results.append(read(item))
        except SettingsError as error:
            faults.append(str(error))
    if faults:
        raise SettingsError("; ".join(faults))
    return results


class EnableConflict(SettingsError):
    """Two callers of enable() request different settings."""


class ConfigError(SettingsError):
    """Invalid training configuration."""


class PluginError(AdaptError):
    """A plugin cannot be loaded or registers something invalid."""


class PatchError(AdaptError):
    """Base class of errors about one patch."""


class PatchSpecError(PatchError):
    """Invalid declaration of a patch."""


class PatchConflict(PatchError):
    """Two patches change the same place."""


class PatchDrift(PatchError):
    """The target of a patch is missing or has changed."""


class PatchFailed(PatchError):
    """Applying a patch raised an exception."""


class PatchLost(PatchError):
    """A target was reloaded or replaced after its patch was applied."""


class KernelError(AdaptError):
    """A kernel cannot compute a call."""


class KernelArgumentError(KernelError):
    """Arguments contradict each other or the contract."""


class BackendUnavailable(KernelError):
    """A requested backend is missing or cannot compute the call."""


def not_installed(package: str | None, purpose: str, extra: str) -> str:
    """Return the message for a missing package that an extra of ascend_adapt installs."""
    return f"{package}: not installed, expected for {purpose} — pip install 'ascend_adapt[{extra}]'"


class LaunchError(AdaptError):
    """A job cannot be planned or started."""


class EmulationError(LaunchError):
    """An emulated NPU cannot be built or run on this host."""


class TrainingError(AdaptError):
    """A run of the native trainer cannot continue."""


class CheckpointError(AdaptError):
    """A checkpoint cannot be read, converted or written."""


class AlignmentError(AdaptError):
    """A recording cannot be written, read or compared."""


class DataError(AdaptError):
    """Invalid text or token files."""


class BadLine(DataError):
    """An input line is not a valid document."""


class OperatorLimit(RuntimeError):
    """A call exceeds a documented limit of an NPU operator."""


class OperatorMissing(NotImplementedError):
    """The emulated NPU lacks an operator."""
