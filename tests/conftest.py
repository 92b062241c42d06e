"""Fixtures: a folder of stand-in modules, and enable() with patches given directly; both leave nothing behind."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from covering import EVERY_CASE
from stand_ins import Site, plugin

import ascend_adapt
from ascend_adapt.launch.one_host import signals
from ascend_adapt.patches.apply import bodies

# A test run that was started by nohup, or in the background of a script, ignores signals, and so would all it starts.
signals.restore_defaults()

LONGEST_FIRST = (
    "emulation/test_jobs.py",
    "plugins/test_deepspeed_behaviour.py",
    "emulation/test_cuda_code.py",
    "data/test_preprocessing.py",
    "launch/jobs/test_native.py",
    "emulation/test_full_size.py",
    "emulation/test_saturation.py",
    "plugins/test_deepspeed_0_9_2.py",
    "launch/test_commands.py",
    "plugins/test_cuda_code.py",
    "alignment/test_megatron_tensor_parallel.py",
    "launch/one_host/test_guardian.py",
    "plugins/hf/test_kernel_swaps.py",
    "upstream_runs/test_own_scripts.py",
    "native/test_meshes.py",
    "launch/test_several_hosts.py",
    "kernels/test_triton.py",
    "examples/test_tiny.py",
    "launch/hosts/test_several_hosts.py",
    "plugins/test_deepspeed_runtime.py",
    "plugins/test_gpt_neox.py",
    "emulation/test_launching.py",
    "native/test_unshared_folder.py",
    "upstream/test_installed_mutations.py",
    "checkpoint/test_zero_shards.py",
    "patches/test_session.py",
    "launch/one_host/test_signals.py",
    "native/metrics/test_stragglers.py",
    "launch/jobs/test_dry_run.py",
    "native/parallel/test_zero.py",
    "emulation/test_other_patchers.py",
    "launch/jobs/test_fallback.py",
    "examples/test_third_party_plugin.py",
    "emulation/test_on_device.py",
    "native/test_compile.py",
)
"""Files of 8 s and more, by their seconds in a full run: if one started last, the other process would idle."""


def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Put the longest files first: ``--dist loadfile`` assigns files in the order of collection.

    Tests marked ``every_case`` are deselected unless ``ASCEND_ADAPT_EVERY_CASE=1``.
    """
    if not EVERY_CASE:
        left_out = [item for item in items if item.get_closest_marker("every_case")]
        config.hook.pytest_deselected(items=left_out)
        items[:] = [item for item in items if item not in left_out]
    places = {Path(__file__).parent / name: place for place, name in enumerate(LONGEST_FIRST)}
    if missing := [str(path) for path in places if not path.is_file()]:
        raise pytest.UsageError(f"LONGEST_FIRST: {', '.join(missing)}: no such file, expected a test file - correct it")
    items.sort(key=lambda item: places.get(item.path, len(places)))


@pytest.fixture
def needs_torch() -> None:
    """Skip the test in an environment without torch: nox has such environments, one for each Python."""
    if importlib.util.find_spec("torch") is None:
        pytest.skip("torch is not installed")


@pytest.fixture(scope="session", autouse=True)
def no_records_of_the_user(tmp_path_factory: pytest.TempPathFactory) -> Iterator[None]:
    """Records that a conformance run left in the user's own folder are evidence, so `status` would print them."""
    with pytest.MonkeyPatch.context() as environment:
        environment.setenv("XDG_STATE_HOME", str(tmp_path_factory.mktemp("state")))
        yield


@pytest.fixture(autouse=True)
def nothing_in_the_environment() -> Iterator[None]:
    """A test that leaves a variable or a mapping of "cuda" behind changes later tests of the same process."""

    def ours() -> dict[str, str]:
        return {name: value for name, value in os.environ.items() if name.startswith("ASCEND_ADAPT")}

    before = ours()
    yield
    after = ours()
    for name in before.keys() | after.keys():
        os.environ.pop(name, None)
    os.environ.update(before)
    assert after == before
    assert not unmap_cuda(), 'the test leaves "cuda" mapped to another device'


def unmap_cuda() -> bool:
    """Undo what CUDA code has changed in this process, and return whether that was anything."""
    programs = sys.modules.get("ascend_adapt_plugins.without_cuda.programs")
    current = None if programs is None else programs.current()
    is_active = current is not None and current._change is not None and not current._undone
    if is_active:
        current.undo()
    return is_active


@pytest.fixture
def site(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Site]:
    """A folder on sys.path; at the end everything is reverted and its modules are forgotten."""
    for name in [name for name in os.environ if name.startswith("ASCEND_ADAPT")]:
        monkeypatch.delenv(name)
    monkeypatch.syspath_prepend(tmp_path)
    before = set(sys.modules)
    yield Site(tmp_path)
    ascend_adapt.disable()
    for name in set(sys.modules) - before:
        file = getattr(sys.modules[name], "__file__", None) or ""
        if file.startswith(str(tmp_path)) or not file:
            del sys.modules[name]


@pytest.fixture
def bodies_of_stand_ins(monkeypatch: pytest.MonkeyPatch) -> None:
    """Take the bodies of stand-ins, which are code of ours, for those that a patch was read off."""
    monkeypatch.setattr(bodies, "check", lambda patch, standing: None)


@pytest.fixture
def enable(site: Site) -> Callable[..., ascend_adapt.Status]:
    """enable(*patches, **settings): enable() with a plugin of those patches."""

    def call(*patches: Any, **settings: Any) -> ascend_adapt.Status:
        name = settings.pop("name", "stand_in")
        return ascend_adapt.enable(plugins=[plugin(*patches, name=name)], **settings)

    return call
