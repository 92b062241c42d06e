"""Overhead of ascend_adapt, each figure measured together with its baseline: ``make bench-overhead``.

Medians of alternating rounds, so that other load on the machine affects both sides equally.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import time
import timeit
from pathlib import Path
from types import ModuleType
from typing import Any

from rich.console import Console
from rich.table import Table

import ascend_adapt
from ascend_adapt.patches.apply import aliases

TERMS: dict[str, Any] = {"why": "it is measured", "until": "the bench ends", "without": "slower"}
UPSTREAM = """
def function(x): return x
class Engine:
    def method(self, x): return x
"""


def pass_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
    """No-op wrapper, used by both sides."""
    return wrapped(*args, **kwargs)


def plugin(patches: list[ascend_adapt.Patch]) -> ModuleType:
    module = ModuleType("bench")
    module.register_patches = ascend_adapt.hookimpl(lambda: patches)  # type: ignore[attr-defined]
    return module


def upstream(name: str) -> Any:
    module = sys.modules[name] = ModuleType(name)
    exec(UPSTREAM, vars(module))
    return module


def per_call_ns(holder: Any, name: str, number: int = 50_000) -> float:
    """Time one call as users write it, ``holder.name(1)``, including the binding of a method."""
    return timeit.timeit(f"holder.{name}(1)", globals={"holder": holder}, number=number) / number * 1e9


def calls(rounds: int = 15) -> list[tuple[str, str, str, str]]:
    """Measure the overhead of a wrapped no-op call relative to wrapt's, without the time of the plain call."""
    import wrapt

    plain, ours, theirs = (upstream(f"bench_{name}") for name in ("plain", "ours", "theirs"))
    patches = [
        ascend_adapt.wrap(f"bench_ours:{path}", name=path, **TERMS)(pass_on) for path in ("function", "Engine.method")
    ]
    wrapt.wrap_function_wrapper(theirs, "function", pass_on)
    wrapt.wrap_function_wrapper(theirs, "Engine.method", pass_on)
    rows = []
    with ascend_adapt.enabled(plugins=[plugin(patches)]):
        modules = (plain, ours, theirs)
        for what, holders in (("function", modules), ("method", [module.Engine() for module in modules])):
            samples = [[per_call_ns(holder, what) for holder in holders] for _ in range(rounds)]
            bare, mine, wrapts = (statistics.median(column) for column in zip(*samples, strict=True))
            ratio = statistics.median((m - b) / (w - b) for b, m, w in samples)
            measured = f"{bare:.0f} plain, {mine:.0f} ours, {wrapts:.0f} wrapt, ns"
            rows.append((f"wrapped {what} call, added over wrapt's", measured, f"{ratio:.2f}", "at most 0.33"))
    return rows


ARM = f"""
import sys, time
sys.path.insert(0, {str(Path(__file__).parent)!r})
import overhead, ascend_adapt
count = int(sys.argv[1])
patches = [
    ascend_adapt.wrap(f"bench_target{{n % 50}}.part{{n}}:Engine.method", name=f"p{{n}}",
                      requires=f"bench_target{{n % 50}}>=1", **overhead.TERMS)(overhead.pass_on)
    for n in range(count)
]
ours = overhead.plugin(patches)
start = time.perf_counter()
status = ascend_adapt.enable(plugins=[ours])
print((time.perf_counter() - start) * 1e3)
assert sum(one.state == "armed" and one.plugin == "bench" for one in status.outcomes) == count
"""


def fresh(code: str, *arguments: str) -> float:
    command = [sys.executable, "-W", "ignore", "-c", code, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=True)
    return float(done.stdout.split()[-1])


def arming(rounds: int = 7) -> list[tuple[str, str, str, str]]:
    """Measure enable() with 500 armed patches and with none, in fresh processes."""
    samples = [(fresh(ARM, "0"), fresh(ARM, "500")) for _ in range(rounds)]
    none, many = (statistics.median(column) for column in zip(*samples, strict=True))
    added = statistics.median(b - a for a, b in samples)
    measured = f"{none:.0f} ms with none, {many:.0f} ms"
    return [("enable() with 500 armed patches", measured, f"{added:+.0f} ms", "at most +50 ms")]


def scanning(rounds: int = 9) -> list[tuple[str, str, str, str]]:
    """Measure one scan for copies over 3,000 modules of 80 names."""
    modules = [ModuleType(f"bench_{number}") for number in range(3000)]
    for number, module in enumerate(modules):
        vars(module).update({f"name{index}": (number, index) for index in range(80)})
    old, new = object(), object()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        aliases.rebind({id(old): (old, new)}, modules)
        times.append((time.perf_counter() - start) * 1e3)
    return [("one scan of 3,000 modules x 80 names", "", f"{statistics.median(times):.0f} ms", "under 100 ms")]


IMPORT = """
import time; start = time.perf_counter()
if {enabled}:
    import ascend_adapt; ascend_adapt.enable()
import deepspeed, transformers
from transformers import AutoModelForCausalLM
print(time.perf_counter() - start)
"""


def importing(rounds: int = 7) -> list[tuple[str, str, str, str]]:
    """Measure importing deepspeed and transformers with and without enable(), in alternating fresh processes."""
    what = "enable() and import deepspeed, transformers"
    try:
        for enabled in (False, True):
            fresh(IMPORT.format(enabled=enabled))
    except subprocess.CalledProcessError as error:
        reason = error.stderr.strip().splitlines()[-1]
        return [(what, f"not measured: {reason}", "", "at most +5 %")]
    samples = [(fresh(IMPORT.format(enabled=False)), fresh(IMPORT.format(enabled=True))) for _ in range(rounds)]
    without, with_ = (statistics.median(column) for column in zip(*samples, strict=True))
    ratio = with_ / without - 1
    return [(what, f"{without:.2f} s without, {with_:.2f} s with", f"{ratio:+.1%}", "at most +5 %")]


def main() -> None:
    table = Table("what", "measured", "figure", "target", title=f"ascend_adapt {ascend_adapt.__version__}")
    for bench in (calls, arming, scanning, importing):
        for row in bench():
            table.add_row(*row)
    Console(width=140 if not sys.stdout.isatty() else None).print(table)


if __name__ == "__main__":
    main()
