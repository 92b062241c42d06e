"""Right patches of unusual targets pass every scenario of their stand-ins, or are reported as not shown."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

TARGET = """
class Thing:
    @staticmethod
    def static(x, *, y=2): return x
    @classmethod
    def of_class(cls, x=1): return x
    @property
    def spoken(self): return 3
    def __private(self): return 1

def positional(a, /, b, *, c): return a
"""
CODE = """
import json, sys
from ascend_adapt import entry, replace, wrap
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.patches.declare.spec import Registered
from ascend_adapt.testing import scenarios, stage
from pathlib import Path
TERMS = dict(requires="target_of_ours>=1,<2", why="w", until="u", without="crash")
def pass_on(wrapped, instance, args, kwargs): return wrapped(*args, **kwargs)
def positional(a, /, b, *, c): return a
class Key: pass
one = Registered(DECLARATION, "odd", "plugin_of_ours")
results = {}
for topic, cases in scenarios.of(one.patch).items():
    for name, case in cases.items() if topic not in ("compile", scenarios.ALL_ORDERS) else ():
        result = stage._in_a_child(case, one, Path("stage", str(len(results))), SourceTree(Path("upstream")))
        results[f"{topic}: {name}"] = result
print(json.dumps(results))
"""
WRAP = 'wrap("target_of_ours.module:{}", **TERMS)(pass_on)'


@pytest.mark.parametrize(
    ("declaration", "not_shown"),
    [
        (WRAP.format("Thing.static"), set()),
        (WRAP.format("Thing.of_class"), set()),
        (WRAP.format("Thing.spoken"), {"copies: pickle, deepcopy, partial"}),
        (WRAP.format("Thing.__private"), set()),
        ('replace("target_of_ours.module:positional", **TERMS)(positional)', set()),
        ('replace("target_of_ours.module:positional", bodies="0123456789abcdef", **TERMS)(positional)', set()),
        ('replace("target_of_ours.module:positional", value=positional, **TERMS)', set()),
        ('entry("target_of_ours.module:TABLE", Key(), 1, present=False, **TERMS)', {"drift: there already"}),
    ],
)
def test_a_right_patch_of_an_unusual_target_passes(declaration: str, not_shown: set[str], tmp_path: Path) -> None:
    package = tmp_path / "upstream" / "target_of_ours"
    package.mkdir(parents=True)
    (package / "__init__.py").touch()
    (package / "module.py").write_text(TARGET)
    command = [sys.executable, "-c", CODE.replace("DECLARATION", declaration)]
    job = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, timeout=280)
    assert job.returncode == 0, job.stderr
    results = json.loads(job.stdout.splitlines()[-1])
    assert {name: result for name, result in results.items() if result[0] == "failed"} == {}
    assert {name for name, result in results.items() if result[0] == "not shown"} == not_shown
