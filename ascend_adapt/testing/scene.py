"""Scene: one patch and its stand-in in a fresh process, on which a scenario acts."""

from __future__ import annotations

import contextlib
import functools
import importlib
import inspect
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from types import FunctionType, ModuleType
from typing import Any

import ascend_adapt
from ascend_adapt.patches.apply.replacement import underlying
from ascend_adapt.patches.declare.outcome import Outcome
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.patches.declare.target import MISSING, Place, locate
from ascend_adapt.patches.judge.installation import SourceTree
from ascend_adapt.testing import stand_in, versions
from ascend_adapt.testing.stand_in import ANSWER, NotShown, Shape

PLUGIN = "conformance"
_ASKS = "asks_for_the_target"
_IMPORTER = "imports_the_target"
_OF_THE_CODE_BASE = "of_the_code_base"
_ASKING = "import importlib\n\ndef ask(name):\n    return importlib.import_module(name)\n"


@dataclass
class Scene:
    """Scene with a stand-in in ``folder``, first on sys.path. A counter replaces the code of the patch.

    The effect of a wrapper or replacement is tested on the real target. In a scene, calls are only counted, and a
    wrapper calls the original.
    """

    registered: Registered
    folder: Path
    tree: SourceTree | None = None
    calls: list[str] = field(default_factory=list)
    plugins: list[ModuleType] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.name = self.registered.name
        self.device = (self.registered.patch.devices or ("cpu",))[0]
        self.patch = self._counting(self.registered.patch)
        self.shape = stand_in.shape_of(self.registered.patch, self.tree)
        if self.patch.bodies:
            self.patch = replace(self.patch, bodies=(stand_in.digest(self.patch, self.shape),))
        if self.patch.original is not None:  # the stand-in defines the original next to the mapping
            self.patch = replace(self.patch, original=replace(self.patch.original, module=self.patch.target.module))
        self.versions = {one.name: versions.around(one).inside for one in self.patch.requires}
        root = self.patch.target.root
        if root in sys.modules and self.patch.host_script is None:
            raise NotShown(f"{root} is needed in this process, so no stand-in can replace it")
        for name in [name for name in os.environ if name.startswith("ASCEND_ADAPT")]:
            del os.environ[name]
        os.environ["ASCEND_ADAPT_PLUGINS"] = PLUGIN

    # The stage

    def write(
        self, shape: Shape | None = None, *, with_module: bool = True, versions: Mapping[str, str] | None = None
    ) -> None:
        """Write the stand-in, with other ``versions`` of some distributions, and put it first on sys.path."""
        all_versions = {**self.versions, **(versions or {})}
        stand_in.write(self.patch, shape or self.shape, self.folder, all_versions, with_module=with_module)
        (self.folder / f"{_ASKS}.py").write_text(_ASKING)
        (self.folder / f"{_IMPORTER}.py").write_text(
            f"import sys\nimport {self.patch.target.module}\nheld = sys.modules[{self.patch.target.module!r}]\n"
        )
        sys.path.insert(0, str(self.folder))
        importlib.invalidate_caches()

    def write_script(self) -> None:
        """Write the launched script that the patch rewrites, and its requirements."""
        stand_in.write_around(self.patch, self.folder, self.versions)
        (self.folder / str(self.patch.host_script)).write_text(stand_in.source(self.patch, self.shape))
        sys.path.insert(0, str(self.folder))

    def import_target(self) -> None:
        """Import the target's module as the code around it does, or its nearest parent package if it is missing."""
        ask = importlib.import_module(_ASKS).ask
        try:
            if self.patch.importers:
                sys.modules.pop(_IMPORTER, None)
            ask(_IMPORTER if self.patch.importers else self.patch.target.module)
        except ModuleNotFoundError:
            for package in self.patch.target.packages[1:]:
                with contextlib.suppress(ModuleNotFoundError):
                    ask(package)
                    break
        for name in stand_in.modules_with_versions(self.patch):
            ask(name)
        for name in stand_in.code_bases_of_shared_targets(self.patch):
            # Code of a code base runs when one of its modules imports another. Until then, shared targets wait.
            inside = self.folder / name / _OF_THE_CODE_BASE
            inside.mkdir(parents=True, exist_ok=True)
            (inside / "__init__.py").touch()
            importlib.invalidate_caches()
            with contextlib.suppress(ModuleNotFoundError):
                ask(f"{name}.{_OF_THE_CODE_BASE}.another_module")

    def take_alias(self, name: str) -> None:
        """Import a new module with an alias of the target (``from module import name``)."""
        path = self.patch.target.path
        if self.patch.kind in ("add", "provide", "entry") or self.shape.value:
            return
        taken = f"from {self.patch.target.module} import {path[0]} as owner\ntarget = owner"
        taken += "".join(f".{step}" for step in path[1:-1])
        if len(path) > 1:
            taken += f"\ntarget = vars(target).get({self.place().name!r})"
            taken += "\nif isinstance(target, staticmethod):\n    target = target.__func__"
        (self.folder / f"{name}.py").write_text(f"{taken}\nIS_ALIAS_OF_THE_TARGET = True\n")
        importlib.invalidate_caches()
        importlib.import_module(name)

    def aliases(self) -> list[Any]:
        """Return the aliases in the alias modules."""
        return [one.target for one in list(sys.modules.values()) if vars(one).get("IS_ALIAS_OF_THE_TARGET")]

    def place(self) -> Place:
        """Return the current object at the target."""
        return locate(self.patch.target, sys.modules[self.patch.target.module])

    def standing(self) -> Any:
        """Return the current object of an alias, or the function of a static method."""
        return underlying(self.place().value)

    # Acting

    def enable(self, *more: Patch, device: str | None = None) -> Outcome:
        """Call enable() with the patch, and with ``more`` patches of other plugins, and return the patch's outcome."""
        if not self.plugins:
            self.plugins = [_plugin(PLUGIN, self.name, self.patch)]
            self.plugins += [_plugin(f"{PLUGIN}_{index}", f"other_{index}", one) for index, one in enumerate(more)]
        plugins = self.plugins
        os.environ["ASCEND_ADAPT_PLUGINS"] = ",".join(plugin.__name__ for plugin in plugins)
        ascend_adapt.enable(plugins=plugins, device=device or self.device)
        return self.outcome()

    def outcome(self) -> Outcome:
        """Return the current outcome of the patch."""
        return ascend_adapt.status()[f"{PLUGIN}.{self.name}"]

    @contextlib.contextmanager
    def drift_allowed(self) -> Iterator[None]:
        """Allow the patch to drift without an error."""
        os.environ["ASCEND_ADAPT_ALLOW_DRIFT"] = self.name
        yield
        del os.environ["ASCEND_ADAPT_ALLOW_DRIFT"]

    # Looking

    def expect(self, state: str, *words: str) -> None:
        """Check the patch's state, and that its reason contains ``words``."""
        outcome = self.outcome()
        self._may_be_judged(outcome, state)
        check(outcome.state == state, f"is {outcome.state}, expected {state}: {outcome.reason}")
        for word in words:
            check(word in outcome.reason, f"the reason {outcome.reason!r} does not contain {word!r}")

    def _may_be_judged(self, outcome: Outcome, state: str) -> None:
        if outcome.state == "not_needed" != state and self.patch.unless is not None:
            raise NotShown(f"unless= finds no fault in the stand-in: {outcome.reason}")

    def expect_untouched(self) -> None:
        """Check that every namespace of the target has its original objects."""
        module = sys.modules.get(self.patch.target.module)
        if module is None or self.patch.kind == "provide":
            return
        owners: list[Any] = [module]
        for step in self.patch.target.path[:-1]:
            if step in vars(owners[-1]):
                owners.append(vars(owners[-1])[step])
        for owner, before in zip(owners, module.AS_MADE, strict=True):
            now = {key: value for key, value in vars(owner).items() if key != "AS_MADE"}
            check(list(now) == list(before), f"{owner} has the names {sorted(now)}, expected {sorted(before)}")
            changed = [key for key in before if now[key] is not before[key]]
            check(not changed, f"{owner} has different objects at {changed}")
        if "CODE_AS_MADE" in vars(module):
            function = owners[-1].__dict__[self.shape.name] if self.shape.name in vars(owners[-1]) else None
            check(
                getattr(function, "__code__", module.CODE_AS_MADE) is module.CODE_AS_MADE,
                "the function has a different code object",
            )

    def expect_in_force(self) -> None:
        """Check that the target is patched exactly once, through each of its names."""
        self.expect("applied")
        if self.patch.importers:
            check(
                self.patch.target.module == sys.modules[_IMPORTER].held.__name__, "the importer has a different module"
            )
            check(self.patch.target.module not in sys.modules, "the module is still visible to all code")
            return
        if self.patch.kind == "provide":
            check(self.patch.target.module in sys.modules, "the module is missing")
            return
        place = self.place()
        made = sys.modules[self.patch.target.module].AS_MADE[-1].get(place.name, MISSING)
        check(place.value is not made or self.patch.kind in ("rewrite", "entry"), "the target is still the original")
        if self.patch.kind == "rewrite":
            code = sys.modules[self.patch.target.module].CODE_AS_MADE
            check(place.value.__code__ is not code, "the function has its original code")
        elif self.patch.kind == "entry":
            check(place.value[self.patch.key] is self.patch.value, f"the key maps to {place.value[self.patch.key]!r}")
        elif self.patch.kind == "add":
            check(place.value is not MISSING, "the attribute is missing")
        elif self.patch.kind == "replace" and self.shape.value:
            check(place.value is self.patch.value, f"the target is {place.value!r}")
        elif not self.shape.value:
            for call in self.uses():
                self.calls.clear()
                call()
                check(len(self.calls) == 1, f"one call ran the patch {len(self.calls)} times, expected once")

    def original(self) -> Any:
        """Return the original object of the target, as an alias refers to it, or MISSING."""
        module = sys.modules[self.patch.target.module]
        return underlying(module.AS_MADE[-1].get(self.place().name, MISSING))

    def uses(self) -> list[Callable[[], Any]]:
        """Return calls of the target through its module and through the alias module."""
        place = self.place()
        signature = inspect.signature(_function(place.value))
        if isinstance(place.value, property):
            return [lambda: getattr(object.__new__(place.owner), place.name)]
        in_class = isinstance(place.owner, type)
        args, kwargs = arguments(signature, bound=in_class and not isinstance(place.value, staticmethod))
        functions = [place.value, *self.aliases()]
        if in_class:
            functions = [getattr(object.__new__(place.owner), place.name)]
        if inspect.iscoroutinefunction(functions[0]) or inspect.isgeneratorfunction(functions[0]):
            return [lambda f=f: finish(f(*args, **kwargs)) for f in functions]  # type: ignore[misc]
        return [functools.partial(f, *args, **kwargs) for f in functions]

    def _counting(self, patch: Patch) -> Patch:
        calls = self.calls

        if patch.kind == "wrap":

            def pass_on(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
                calls.append(self.registered.name)
                return wrapped(*args, **kwargs)

            return replace(patch, function=pass_on, unless=patch.unless)
        given = patch.value if patch.function is None else patch.function
        if patch.kind == "replace" and isinstance(given, FunctionType):
            ours = inspect.signature(given)

            def answer(*args: Any, **kwargs: Any) -> Any:
                calls.append(self.registered.name)
                return ANSWER

            answer.__signature__ = ours  # type: ignore[attr-defined]
            return replace(patch, value=answer) if patch.function is None else replace(patch, function=answer)
        if patch.kind == "provide":

            def fill(module: ModuleType) -> None:
                calls.append(self.registered.name)

            # All importers see the module, because the suite is not the code that ``seen_by`` is for.
            return replace(patch, function=fill, importers=(_IMPORTER,) if patch.importers else (), seen_by=None)
        return patch


def check(holds: bool, otherwise: str) -> None:
    """Raise an AssertionError with the message ``otherwise`` unless ``holds``, also with ``python -O``."""
    if not holds:
        raise AssertionError(otherwise)


def arguments(signature: inspect.Signature, bound: bool) -> tuple[tuple[Any, ...], dict[str, Any]]:
    """Return minimal arguments (all None) for a call with this signature."""
    parameters = list(signature.parameters.values())[bound:]
    required = [one for one in parameters if one.default is one.empty]
    args = tuple(None for one in required if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD))
    return args, {one.name: None for one in required if one.kind is one.KEYWORD_ONLY}


def finish(result: Any) -> Any:
    """Run a coroutine or generator to its end and return its result."""
    if inspect.iscoroutine(result):
        with contextlib.suppress(StopIteration):
            result.send(None)
    elif inspect.isgenerator(result):
        list(result)
    return result


def _function(value: Any) -> Any:
    if isinstance(value, (classmethod, staticmethod)):
        return value.__func__
    return value.fget if isinstance(value, property) else value


def _plugin(name: str, patch_name: str, patch: Patch) -> ModuleType:
    module = ModuleType(name)
    named = replace(patch, name=patch_name)

    @ascend_adapt.hookimpl
    def register_patches() -> list[Patch]:
        return [named]

    module.register_patches = register_patches  # type: ignore[attr-defined]
    return module
