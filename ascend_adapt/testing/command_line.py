"""Command line of ``pytest --pyargs ascend_adapt.testing``: the options, the selected patches, and their tests."""

from __future__ import annotations

import datetime
import functools
import importlib
import os
import sys
from collections.abc import Iterable, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from ascend_adapt.diagnosis import evidence
from ascend_adapt.errors import AdaptError, type_and_message
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.patches.judge import static
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.runtime import code_bases
from ascend_adapt.runtime.plugin_manager import PluginManager
from ascend_adapt.testing import hardware, real_target, scenarios, stage

# These topics run for all patches in one process, which imports torch. Other processes run this many patches each.
_TOGETHER = ("compile",)
_PATCHES_OF_A_PROCESS = 8


def pytest_addoption(parser: pytest.Parser) -> None:
    """Add the suite's options to pytest."""
    group = parser.getgroup("ascend_adapt", "the conformance suite of ascend_adapt")
    group.addoption(
        "--patch",
        action="append",
        default=[],
        metavar="NAME",
        help="test only this patch, given as patch or plugin.patch",
    )
    group.addoption(
        "--plugin",
        action="append",
        default=[],
        metavar="NAME",
        help="test only this plugin; the name of a module loads a plugin that is not installed",
    )
    group.addoption("--upstream", metavar="DIR", help="also check the patches on this source tree")
    group.addoption(
        "--all-orders",
        action="store_true",
        help="run every order of importing, enabling and disabling, instead of a covering set",
    )
    group.addoption("--hardware", action="store_true", help="run on a real NPU, or fail if there is none")
    group.addoption(
        "--evidence", metavar="FILE", help="file for the evidence records (default: in the user's state folder)"
    )


def pytest_configure(config: pytest.Config) -> None:
    """Select the patches to test, or fail with a usage error."""
    for name, ours in (("python_files", "test_*.py"), ("python_functions", "test_*")):
        config.addinivalue_line(name, ours)  # set here, regardless of the current project's configuration
    try:
        _refuse_several_processes(config)
        _refuse_a_file_that_cannot_be_written(config)
        selection = Selection.of(config)
        if config.getoption("--hardware"):
            selection.soc = hardware.real_npu()
        config.stash[_SELECTION] = selection
    except AdaptError as error:
        raise pytest.UsageError(str(error)) from error


def _refuse_several_processes(config: pytest.Config) -> None:
    """Reject pytest-xdist, because results are collected in one process."""
    if config.getoption("dist", "no") != "no" or hasattr(config, "workerinput"):
        raise AdaptError(
            "-n, --dist: several processes, expected one, in which the suite collects results — remove the option, or "
            "add -n 0"
        )


def _refuse_a_file_that_cannot_be_written(config: pytest.Config) -> None:
    given = config.getoption("--evidence")
    if given is None:
        return
    path = Path(given)
    if path.exists():
        evidence.load(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise AdaptError(f"--evidence {given}: {error} — pass a file that can be written") from error


def pytest_generate_tests(metafunc: pytest.Metafunc) -> None:
    """Parametrize the suite's tests with patches and topics."""
    if not metafunc.module.__name__.startswith(f"{__package__}."):
        return
    selection = metafunc.config.stash[_SELECTION]
    if "topic" in metafunc.fixturenames:
        pairs = [(one, topic) for one in selection.patches for topic in selection.topics(one)]
        ids = [f"{one.full_name}-{topic}" for one, topic in pairs]
        metafunc.parametrize(("one", "topic"), pairs, ids=ids)
    elif "one" in metafunc.fixturenames:
        metafunc.parametrize("one", selection.patches, ids=[one.full_name for one in selection.patches])


def pytest_collection_finish(session: pytest.Session) -> None:
    """Start the processes that the tests need."""
    with_process = ("test_on_a_stand_in", "test_on_the_installed_target")
    items = [item for item in session.items if isinstance(item, pytest.Function) and item.originalname in with_process]
    if not session.config.option.collectonly:
        session.config.stash[_SELECTION].prepare(item.callspec.params for item in items)


def pytest_sessionfinish(session: pytest.Session) -> None:
    """Stop the processes of the tests."""
    session.config.stash[_SELECTION].close()


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Run the guard against an empty run last."""
    items.sort(key=lambda item: item.name.startswith("test_every_patch_reached_applied"))


@pytest.fixture(scope="session")
def selection(request: pytest.FixtureRequest) -> Selection:
    """The patches that the command line selects."""
    return request.config.stash[_SELECTION]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Print where patches were applied, which scenarios were not shown, and the path of the evidence."""
    selection = config.stash[_SELECTION]
    if not selection.applied:
        return
    counts = [f"{len(selection.applied)} of {len(selection.patches)} patches were applied"]
    counts += [f"{sum(where == each for where in selection.applied.values())} on {each}" for each in _WHERE]
    terminalreporter.section("ascend_adapt conformance")
    terminalreporter.write_line(", ".join(counts))
    for name, where in sorted(selection.applied.items()):
        if where == _WHERE[1]:
            terminalreporter.write_line(f"  only on a stand-in: {name} ({selection.why_not_real.get(name, 'not run')})")
    for text in selection.not_shown:
        terminalreporter.write_line(f"  not shown: {text}")
    if selection.records:
        path = _evidence_path(config)
        try:
            evidence.write(selection.records, path)
        except (OSError, AdaptError) as error:
            terminalreporter.write_line(f"{len(selection.records)} evidence records were not written: {error}")
        else:
            terminalreporter.write_line(f"{len(selection.records)} evidence records: {path}")


def _evidence_path(config: pytest.Config) -> Path:
    given = config.getoption("--evidence")
    stamp = datetime.datetime.now(datetime.timezone.utc).strftime("%Y%m%dT%H%M%SZ")
    return Path(given) if given else evidence.user_folder(os.environ) / f"conformance-{stamp}.json"


_WHERE = ("a real target", "a stand-in")


def require(holds: bool, otherwise: str) -> None:
    """Fail the test with the message ``otherwise``, and without a traceback, unless ``holds``."""
    if not holds:
        pytest.fail(otherwise, pytrace=False)


@dataclass(eq=False)
class Selection:
    """The patches under test, and their results so far."""

    patches: tuple[Registered, ...]
    modules: tuple[str, ...]
    upstream: SourceTree | None
    known_hosts: dict[str, CodeBase]
    tier: str
    all_orders: bool = False
    pythonpath: tuple[str, ...] = ()
    """The setting ``pythonpath`` of the current project's pytest configuration."""

    def __post_init__(self) -> None:
        self.soc = ""
        self.applied: dict[str, str] = {}
        self.why_not_real: dict[str, str] = {}
        self.not_shown: list[str] = []
        self.records: list[evidence.EvidenceRecord] = []
        self._stages: dict[tuple[bool, int], Future[dict[str, dict[str, list[str]]]]] = {}
        self._real: dict[tuple[str, str, bool], Future[dict[str, list[str]]]] = {}
        self._processes = ThreadPoolExecutor(len(os.sched_getaffinity(0)))

    @classmethod
    def of(cls, config: pytest.Config) -> Selection:
        """Return the selection for the options in ``config``.

        Raises:
            AdaptError: a patch is unknown, or a plugin unusable.
        """
        wanted, plugins = config.getoption("--patch"), config.getoption("--plugin")
        manager = PluginManager()
        modules = [name for name in plugins if name not in manager.known]
        manager.add(_load(name) for name in modules)
        loaded = [name.rpartition(".")[2] for name in modules] + modules
        patches, problems = manager.patches(), list(manager.problems)
        known, usable = manager.hosts(patches, code_bases.KNOWN)
        problems += [problem for problem in manager.problems if problem not in problems]
        problems += manager.left_out()
        if plugins:
            usable = [one for one in usable if one.plugin in (*plugins, *loaded)]
        if wanted:
            usable = [one for one in usable if one.is_named(wanted) and (one.plugin not in wanted or not plugins)]
        for name in wanted:
            if not any(one.is_named([name]) for one in usable):
                raise AdaptError(f"--patch {name}: no plugin registers it — `ascend-adapt status` lists the names")
        if problems:
            raise AdaptError("; ".join(problems))
        for name in plugins:
            if not any(one.plugin in (name, name.rpartition(".")[2]) for one in patches):
                raise AdaptError(f"--plugin {name}: registers no patches — return them from register_patches()")
        if not usable:
            raise AdaptError("no patches: no plugin registers any — pass --plugin MODULE, or install one")
        upstream = config.getoption("--upstream")
        if upstream is not None and not Path(upstream).is_dir():
            raise AdaptError(f"--upstream {upstream}: is not a folder — pass an unpacked source tree")
        tree = SourceTree(Path(upstream)) if upstream else None
        if tree is not None and not any(is_of(one, tree) for one in usable):
            roots = sorted({one.patch.target.root for one in usable})
            raise AdaptError(
                f"--upstream {upstream}: contains none of {', '.join(roots)} — pass the folder that contains them"
            )
        tier = "hardware" if config.getoption("--hardware") else "cpu"
        pythonpath = tuple(map(str, config.getini("pythonpath")))
        all_orders = config.getoption("--all-orders")
        return cls(tuple(usable), tuple(modules), tree, known, tier, all_orders, pythonpath)

    def topics(self, one: Registered) -> list[str]:
        """Return the selected topics of scenarios."""
        return [topic for topic in scenarios.of(one.patch) if topic != scenarios.ALL_ORDERS or self.all_orders]

    def device_of(self, one: Registered) -> str:
        """Return the device kind to test a patch on: its first device, or an NPU with ``--hardware`` if possible."""
        devices = one.patch.devices or ("cpu",)
        return "npu" if self.tier == "hardware" and "npu" in (one.patch.devices or ("npu",)) else devices[0]

    def verdict(self, one: Registered, tree: SourceTree | None = None) -> Outcome:
        """Return the static outcome of a patch on ``tree`` or the installation, without importing anything."""
        (outcome,) = static.judge([one], device=self.device_of(one), hosts=self.known_hosts, tree=tree)
        return outcome

    def on_stand_in(self, one: Registered, topic: str) -> dict[str, list[str]]:
        """Return the results of one topic of a patch's scenarios: scenario -> [passed, failed or not shown, text]."""
        results = self._stage(one, topic).result()[one.full_name]
        return {text: result for text, result in results.items() if text.startswith(f"{topic}: ")}

    def _stage(self, one: Registered, topic: str) -> Future[dict[str, dict[str, list[str]]]]:
        together = topic in _TOGETHER
        at = 0 if together else self.patches.index(one) // _PATCHES_OF_A_PROCESS * _PATCHES_OF_A_PROCESS
        patches = self.patches if together else self.patches[at : at + _PATCHES_OF_A_PROCESS]
        key = (together, at)
        if key not in self._stages:
            trees = {each.full_name: self._tree_of(each) for each in patches}
            every = dict.fromkeys(each for one in patches for each in self.topics(one))
            topics = [each for each in every if (each in _TOGETHER) == together]
            plan = {"patches": trees, "plugins": self.modules, "topics": topics}
            self._stages[key] = self._processes.submit(stage.run, plan, self._environ())
        return self._stages[key]

    def _tree_of(self, one: Registered) -> str | None:
        """Return the source tree whose target the stand-in copies, or None if the patch fits none."""
        if self.upstream is not None and self.verdict(one, self.upstream).state == "armed":
            return str(self.upstream.root)
        folder = real_target.installed_folder(one.patch)
        return str(folder) if folder is not None and self.verdict(one).state == "armed" else None

    def on_real_target(self, one: Registered) -> list[str]:
        """Return [passed, failed or not shown, text] of a patch on the installed target."""
        result = self._real_target(one).result()[one.full_name]
        if result[0] != stage.FAILED or len({each.patch.target.module for each in self._tested_with(one)}) == 1:
            return result
        # Another module in the process may be the cause, so this module is run alone.
        return self._real_target(one, alone=True).result()[one.full_name]

    def _real_target(self, one: Registered, alone: bool = False) -> Future[dict[str, list[str]]]:
        """Return the results of all patches that share a process with this one, or with ``alone`` its module."""
        package, device = self._process_of[one.full_name]
        key = (one.patch.target.module if alone else package, device, alone)
        if key not in self._real:
            together = self._tested_with(one)
            if alone:
                together = [each for each in together if each.patch.target.module == one.patch.target.module]
            names = [each.full_name for each in together if self.is_on_real_target(each, self.verdict(each))]
            self._real[key] = self._processes.submit(real_target.run, names, self.modules, device, self._environ())
        return self._real[key]

    def _tested_with(self, one: Registered) -> list[Registered]:
        return [each for each in self.patches if self._process_of[each.full_name] == self._process_of[one.full_name]]

    @functools.cached_property
    def _process_of(self) -> dict[str, tuple[str, str]]:
        """Patch -> (package, device) of its process. Patches of missing packages share the package ""."""
        return {
            one.full_name: (
                "" if real_target.installed_folder(one.patch) is None else one.patch.target.root,
                self.device_of(one),
            )
            for one in self.patches
        }

    def prepare(self, asked: Iterable[Mapping[str, Any]]) -> None:
        """Start the processes for tests with these parameters, in order and one per core."""
        for parameters in asked:
            one = parameters["one"]
            if "topic" in parameters:
                self._stage(one, parameters["topic"])
            elif self.tier != "hardware" and self.is_on_real_target(one, self.verdict(one)):
                self._real_target(one)

    def close(self) -> None:
        """Cancel pending processes, and wait for the running processes."""
        self._processes.shutdown(cancel_futures=True)

    @staticmethod
    def is_on_real_target(one: Registered, outcome: Outcome) -> bool:
        """Return whether a patch with this outcome is tested on the installed target."""
        return outcome.state == "armed" and one.patch.host_script is None

    def _environ(self) -> dict[str, str]:
        kept = {name: value for name, value in os.environ.items() if not name.startswith("ASCEND_ADAPT")}
        search = [*self.pythonpath, *filter(None, [kept.get("PYTHONPATH")])]
        return {**kept, "PYTHONPATH": os.pathsep.join(search)} if search else kept


def is_of(one: Registered, tree: SourceTree) -> bool:
    """Return whether ``tree`` contains the target of a patch or a required package."""
    roots = (one.patch.target.root, *(each.name.replace("-", "_") for each in one.patch.requires))
    script = one.patch.host_script
    return any(tree.folder(root) is not None for root in roots) or bool(script and (tree.root / script).is_file())


@functools.cache
def _load(name: str) -> Any:
    if os.getcwd() not in sys.path:
        sys.path.append(os.getcwd())  # the processes of the suite have the same path
    try:
        return importlib.import_module(name)
    except ModuleNotFoundError as error:
        raise AdaptError(f"--plugin {name}: neither an installed plugin nor a module ({error})") from error
    except Exception as error:  # a plugin may raise any exception
        cause = type_and_message(error)
        raise AdaptError(f"--plugin {name}: cannot be imported ({cause}) — correct it") from error


_SELECTION = pytest.StashKey[Selection]()
