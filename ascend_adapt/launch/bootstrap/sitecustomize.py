"""Bootstrap of every Python process of a job. Its folder is first on PYTHONPATH, so Python's `site` imports this file.

It only installs an import finder, which adapts the process before the first import of a package that has patches.
Other processes have no further cost. Then it runs the sitecustomize that it hides, if there is one. It imports only
standard library modules that are already loaded or load fast, and supports every interpreter from Python 3.7 on.
"""

from __future__ import annotations

import os
import sys
from _thread import get_ident
from importlib.machinery import ModuleSpec, PathFinder

import _ascend_adapt_signals  # type: ignore[import-not-found]

TYPE_CHECKING = False  # importing typing would cost every process of the job a millisecond
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType, TracebackType

# Another tool's sitecustomize may remove this module from sys.modules and import it again.
_RUN_ALREADY: set[str | None] = vars(sys).setdefault("_ascend_adapt_bootstrap", set())
_OFF = ("0", "false", "no", "off")


class TargetFinder:
    """Import finder that finds nothing, but adapts this process before the first import of a package with patches."""

    def __init__(self, roots: frozenset[str]) -> None:
        self.roots = roots
        self._done = False
        self._busy: set[int] = set()

    def find_spec(
        self, fullname: str, path: Sequence[str] | None = None, target: ModuleType | None = None
    ) -> ModuleSpec | None:
        """Adapt the process if this is the first import of such a package, then search the other finders."""
        # No lock here: enable() has a lock, and calls this method while it holds that lock.
        thread = get_ident()
        if self._done or thread in self._busy or fullname.partition(".")[0] not in self.roots:
            return None
        self._busy.add(thread)
        try:
            self._done = _adapt()
        finally:
            self._busy.discard(thread)
        # The patches' finders were inserted before this one, and this import must not miss them.
        for finder in tuple(sys.meta_path):
            find = getattr(finder, "find_spec", None)
            if find is not None and finder is not self:
                spec: ModuleSpec | None = find(fullname, path, target)
                if spec is not None:
                    return spec
        return None


def _adapt() -> bool:
    """Adapt this process; return False while the script's own enable() is running."""
    try:
        from ascend_adapt.launch.in_process import member
    except ImportError as error:
        _withdraw_beacon()
        print(
            f"ascend_adapt: {sys.executable}: {error}; this process runs without patches — install ascend_adapt there",
            file=sys.stderr,
        )
        return True
    return member.join()


def _begin() -> None:
    if os.environ.get("ASCEND_ADAPT_EMULATED"):
        _emulate()
    if os.environ.get("ASCEND_ADAPT_RECORD"):
        _record()
    if os.environ.get("ASCEND_ADAPT", "").lower() in _OFF:
        return
    if os.environ.get("ASCEND_ADAPT_DEVICE") == "cpu" and os.environ.get("CUDA_VISIBLE_DEVICES"):
        # DeepSpeed's launcher sets this variable even on a CPU. It would expose the GPUs that --device cpu hides.
        os.environ["CUDA_VISIBLE_DEVICES"] = ""
    if os.environ.get("RANK"):
        _claim_rank()
    # The children of a rank inherit its RANK; processes of a command that starts no ranks have none.
    if os.environ.get("ASCEND_ADAPT_RANK_PID", str(os.getpid())).partition(" ")[0] == str(os.getpid()):
        _record_uncaught()
    if os.environ.get("ASCEND_ADAPT_NPU_COMPILE_MODE"):
        _set_compile_mode()
    _ascend_adapt_signals.outlive_passed()
    _leave_beacon()
    roots = frozenset(os.environ.get("ASCEND_ADAPT_TARGETS", "").split(",")) - {""}
    if not roots.isdisjoint(sys.modules):
        _adapt_now()
    elif roots:
        sys.meta_path.insert(0, TargetFinder(roots))
    if any(word.startswith(("--local-rank", "--local_rank")) for word in getattr(sys, "argv", ())[1:]):
        _accept_both_spellings_of_local_rank()


def _emulate() -> None:
    """Load the kernels of the emulated NPU when torch_npu is imported, with or without patches."""
    if os.environ.get("RANK"):
        _claim_rank()
    try:
        from ascend_adapt.emulation import rank
    except ImportError as error:
        print(
            f"ascend_adapt: {sys.executable}: {error}, it has no emulated NPU — install ascend_adapt there",
            file=sys.stderr,
        )
        return
    rank.watch()


def _record() -> None:
    try:
        from ascend_adapt.alignment import watch
    except ImportError as error:
        print(
            f"ascend_adapt: {sys.executable}: {error}, --record has no effect — install ascend_adapt there",
            file=sys.stderr,
        )
        return
    watch.watch(os.environ)


def _set_compile_mode() -> None:
    try:
        from ascend_adapt.launch.in_process import compile_mode
    except ImportError as error:
        print(
            f"ascend_adapt: {sys.executable}: {error}; --npu-compile-mode has no effect — install ascend_adapt there",
            file=sys.stderr,
        )
        return
    compile_mode.watch(os.environ["ASCEND_ADAPT_NPU_COMPILE_MODE"])


def _claim_rank() -> None:
    """Claim this rank, unless a parent process has claimed it: the children of a rank inherit its RANK."""
    rank = ":".join(os.environ.get(name, "") for name in ("RANK", "LOCAL_RANK", "WORLD_SIZE"))
    # Some clusters set RANK once per host. The ranks of a launcher differ at least in one of the other two variables.
    if os.environ.get("ASCEND_ADAPT_RANK_PID", "").partition(" ")[2] != rank:
        os.environ["ASCEND_ADAPT_RANK_PID"] = f"{os.getpid()} {rank}"


def _record_uncaught() -> None:
    """Record the exception that ends this process, so that the launcher can explain the failure of a command."""
    shown_by = sys.excepthook

    def show_and_record(kind: type[BaseException], error: BaseException, trace: TracebackType | None) -> None:
        shown_by(kind, error, trace)
        try:
            from ascend_adapt.launch.one_host import failures
        except ImportError:
            return  # _adapt has already reported the error.
        failures.record_uncaught(os.environ, error, trace)

    sys.excepthook = show_and_record


def _adapt_now() -> None:
    """Adapt a process in which a .pth file has already imported a target."""
    try:
        _adapt()
    except Exception as error:
        # After an exception, site would print one line and continue without the patches. An error of member.join must
        # stop the process.
        print(f"ascend_adapt: {error}", file=sys.stderr, flush=True)
        os._exit(1)


def _accept_both_spellings_of_local_rank() -> None:
    try:
        from ascend_adapt.launch.in_process import local_rank
    except ImportError:
        return
    local_rank.accept_both_spellings()


def _beacon() -> str:
    folder = os.environ.get("ASCEND_ADAPT_RUN_DIR")
    return os.path.join(folder, "beacons", str(os.getpid())) if folder else ""


def _leave_beacon() -> None:
    beacon = _beacon()
    if beacon:
        try:
            descriptor = os.open(beacon, os.O_CREAT | os.O_WRONLY | os.O_APPEND, 0o644)
        except OSError:
            return  # The run directory is gone or its disk is full. The process may continue; the launcher reports it.
        _ascend_adapt_signals.keep_received(descriptor)


def _withdraw_beacon() -> None:
    beacon = _beacon()
    if beacon and os.path.exists(beacon):
        os.unlink(beacon)


def _chain() -> None:
    """Run the next sitecustomize on sys.path, which site would have imported without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    entries = [os.path.abspath(entry) for entry in sys.path]
    later = sys.path[entries.index(here) + 1 :] if here in entries else sys.path
    for entry in later:
        spec: ModuleSpec | None = PathFinder.find_spec("sitecustomize", [entry])
        if spec is None or spec.loader is None or spec.origin in _RUN_ALREADY:
            continue
        _RUN_ALREADY.add(spec.origin)
        module = type(sys)("sitecustomize")
        module.__spec__, module.__loader__, module.__file__ = spec, spec.loader, spec.origin
        sys.modules["sitecustomize"] = module
        spec.loader.exec_module(module)
        return


try:
    if __file__ not in _RUN_ALREADY:
        _RUN_ALREADY.add(__file__)
        _begin()
finally:
    _chain()
