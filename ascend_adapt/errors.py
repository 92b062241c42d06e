"""Every error this package raises on purpose.

    AdaptError
    ├── SettingsError            an option or ASCEND_ADAPT_* value that cannot be meant
    │   ├── EnableConflict       two callers of enable() want different things
    │   └── ConfigError          a training configuration that cannot be meant
    ├── PluginError              a plugin that cannot be loaded, or registers something else than it may
    ├── PatchError
    │   ├── PatchSpecError       a patch declared wrongly
    │   ├── PatchConflict        two patches that exclude each other
    │   ├── PatchDrift           the target is missing or has changed
    │   ├── PatchFailed          applying raised
    │   └── PatchLost            the target was reloaded or replaced after apply
    ├── KernelError              a kernel that cannot compute what it is asked for
    │   ├── KernelArgumentError  arguments that do not fit each other, or the contract
    │   └── BackendUnavailable   a backend was asked for that is not there, or cannot serve the call
    ├── LaunchError              a job that cannot be planned or started
    │   └── EmulationError       an emulated NPU that cannot be had on this machine
    ├── TrainingError            a run that cannot go on
    └── DataError                text or token files that are not what the format, or the request, asks for
        └── BadLine              one line of input that is not a document

Raised where torch_npu itself would raise, so they are what it raises, and a script may catch them as such:

    RuntimeError
    ├── OperatorLimit            a call that does not keep a documented limit of an NPU operator
    └── NotImplementedError
        └── OperatorMissing      an operator that the emulated NPU has not

None is an ImportError: upstream code wraps imports in ``except ImportError`` and would swallow it.
Texts read *subject: observed, expected — next step*.
"""

import errno
import resource


def one_line(error: BaseException) -> str:
    """Return the text of another library's error as part of a paragraph."""
    return " ".join(str(error).split())


def system_error(error: OSError) -> str:
    """Return what the operating system reports, and for an exhausted limit which one it is and how to raise it."""
    text = error.strerror or one_line(error)
    if error.errno == errno.EMFILE:
        limit = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
        return f"{text} (this process may have {limit}: raise it, such as by `ulimit -n 65536`)"
    if error.errno == errno.ENFILE:
        return f"{text} (of the whole machine: `sysctl fs.file-max`)"
    return text


def ran_out(error: OSError) -> bool:
    """Return whether this process or machine lacks a resource, so that the file in question may be valid."""
    return error.errno in (errno.EMFILE, errno.ENFILE, errno.EAGAIN, errno.ENOMEM)


class AdaptError(Exception):
    """Root of the tree above."""


class SettingsError(AdaptError):
    """A setting cannot be meant as given."""


class EnableConflict(SettingsError):
    """Two callers of enable() want different things."""


class ConfigError(SettingsError):
    """A training configuration cannot be meant as given."""


class PluginError(AdaptError):
    """A plugin cannot be loaded, or registers something else than it may."""


class PatchError(AdaptError):
    """Something about one patch."""


class PatchSpecError(PatchError):
    """A patch is declared wrongly."""


class PatchConflict(PatchError):
    """Two patches exclude each other."""


class PatchDrift(PatchError):
    """The target of a patch is missing or has changed."""


class PatchFailed(PatchError):
    """Applying a patch raised."""


class PatchLost(PatchError):
    """A target was reloaded or replaced after its patch was applied."""


class KernelError(AdaptError):
    """A kernel cannot compute what it is asked for."""


class KernelArgumentError(KernelError):
    """Arguments do not fit each other, or the contract."""


class BackendUnavailable(KernelError):
    """A backend was asked for that is not there, or cannot serve the call."""


class LaunchError(AdaptError):
    """A job cannot be planned or started."""


class EmulationError(LaunchError):
    """An emulated NPU cannot be had on this machine."""


class TrainingError(AdaptError):
    """A run of the native trainer cannot go on."""


class DataError(AdaptError):
    """Text or token files are not what the format, or the request, asks for."""


class BadLine(DataError):
    """One line of input is not a document."""


class OperatorLimit(RuntimeError):
    """A call does not keep a documented limit of an NPU operator."""


class OperatorMissing(NotImplementedError):
    """The emulated NPU has not got an operator."""
