"""Plugin manager: finds plugins by entry point, registers them with pluggy, and collects their patches."""

from __future__ import annotations

import difflib
import importlib.metadata
import sys
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import ModuleType
from typing import TYPE_CHECKING, Any

import pluggy

from ascend_adapt.errors import AdaptError, PluginError, SettingsError, type_and_message
from ascend_adapt.patches.declare.code_base import CodeBase
from ascend_adapt.patches.declare.discovery import patches_in
from ascend_adapt.patches.declare.spec import Patch, Registered
from ascend_adapt.runtime import hookspecs

if TYPE_CHECKING:
    from ascend_adapt.runtime.settings import Settings

GROUP = "ascend_adapt"


@dataclass(frozen=True)
class _Origin:
    plugin: str
    distribution: str

    def __str__(self) -> str:
        return f"plugin {self.plugin!r}" + (f" of {self.distribution}" if self.distribution else "")


class PluginManager:
    """Plugins of this process.

    ``problems`` has one message for each unusable plugin. ``without_kernels`` names plugins whose kernel backends are
    ignored.

    Args:
        extra: plugin modules or objects to register after the installed ones.
        disabled: entry-point names of plugins that are not loaded.
        allowed: if not None, the only plugins to load.
    """

    def __init__(
        self, extra: Iterable[Any] = (), disabled: Collection[str] = (), allowed: Collection[str] | None = None
    ) -> None:
        self.problems: list[str] = []
        self.known: list[str] = []
        self.without_kernels: set[str] = set()
        self._manager = pluggy.PluginManager(GROUP)
        self._manager.add_hookspecs(hookspecs)
        self._origins: dict[str, _Origin] = {}
        self._patches: dict[str, tuple[Registered, ...]] = {}
        self._kernels: dict[str, list[tuple[str, Any]]] = {}
        for point in sorted(importlib.metadata.entry_points(group=GROUP), key=lambda point: point.name):
            self.known.append(point.name)
            if point.name in disabled or (allowed is not None and point.name not in allowed):
                continue
            origin = _Origin(point.name, point.dist.name if point.dist is not None else "")
            try:
                plugin = point.load()
            except (
                Exception,
                SystemExit,
            ) as error:  # a plugin may raise any exception, which is reported as a problem of the plugin
                self._refuse(origin, f"importing {point.value} raised {type_and_message(error)}")
                continue
            self._register(plugin, origin)
        self.add(extra)

    @classmethod
    def of(cls, wanted: Settings) -> PluginManager:
        """Return a manager of the plugins that these settings request."""
        return cls(wanted.plugins, wanted.disable, wanted.allowed_plugins)

    def add(self, plugins: Iterable[Any]) -> None:
        """Register plugin modules or objects without an entry point."""
        for plugin in plugins:
            name = _name_of(plugin)
            self.known.append(name)
            self._register(plugin, _Origin(name, ""))

    def remove(self, plugins: Iterable[Any]) -> None:
        """Remove plugins that ``add`` registered."""
        for plugin in plugins:
            name = _name_of(plugin)
            self.known.remove(name)
            if self.has(plugin):
                self._manager.unregister(plugin)
                self._origins.pop(name, None)
                self._patches.pop(name, None)
                self._kernels.pop(name, None)

    def has(self, plugin: Any) -> bool:
        """Return whether this plugin object is registered."""
        return self._manager.is_registered(plugin)

    def _register(self, plugin: Any, origin: _Origin) -> None:
        if self.has(plugin):
            return
        if origin.plugin in self._origins:
            self._refuse(origin, f"the name is taken by {self._origins[origin.plugin]}")
            return
        try:
            self._manager.register(plugin, origin.plugin)
            self._manager.check_pending()
        except pluggy.PluginValidationError as error:
            if self.has(plugin):
                self._manager.unregister(plugin)
            hooks = ", ".join(
                name for name in vars(hookspecs) if hasattr(getattr(hookspecs, name), "ascend_adapt_spec")
            )
            self._refuse(origin, f"{type_and_message(error)}, expected only {hooks}")
            return
        self._origins[origin.plugin] = origin

    def _refuse(self, origin: _Origin, text: str) -> None:
        self._add_problem(f"{origin}: {text} — correct it, uninstall it, or disable it with --disable {origin.plugin}")

    def _add_problem(self, problem: str) -> None:
        if problem not in self.problems:
            self.problems.append(problem)

    def patches(self) -> tuple[Registered, ...]:
        """Return all patches in the order in which they apply: by plugin name, then as declared."""
        for origin in self._origins.values():
            if origin.plugin not in self._patches:
                self._patches[origin.plugin] = self._patches_of(origin)
        return tuple(one for name in sorted(self._patches) for one in self._patches[name])

    def adapt_programs(self, device: str, cuda_code: str) -> list[Any]:
        """Call each plugin's ``adapt_programs``, and return the objects that they return."""
        answers = self._manager.hook.adapt_programs(device=device, cuda_code=cuda_code)
        return [answer for answer in answers if answer is not None]

    def left_out(self) -> list[str]:
        """Return one message for each patch that a plugin declares but register_patches does not return.

        Imports all modules of the plugin.
        """
        returned = {id(one.patch) for one in self.patches()}
        plugins = [(origin, self._manager.get_plugin(origin.plugin)) for origin in self._origins.values()]
        return [
            f"{origin}: {patch} is declared, but register_patches does not return it — return patches_in(__name__)"
            for origin, plugin in plugins
            if isinstance(plugin, ModuleType)
            for patch in patches_in(plugin)
            if id(patch) not in returned
        ]

    def _patches_of(self, origin: _Origin) -> tuple[Registered, ...]:
        plugin = self._manager.get_plugin(origin.plugin)
        try:
            return _registered(plugin, origin, _declared(plugin))
        except (Exception, SystemExit) as error:
            text = str(error) if isinstance(error, AdaptError) else f"register_patches raised {type_and_message(error)}"
            self._refuse(origin, text)
            return ()

    @property
    def extends_kernels(self) -> bool:
        """Whether any plugin has kernel backends; if none has, kernels need not be imported."""
        return bool(self._manager.hook.register_kernels.get_hookimpls())

    def kernels(self, unusable: Callable[[str, Any], str]) -> list[tuple[str, Any]]:
        """Return pairs (kernel name, backend) of all plugins, by plugin name and then as declared.

        ``unusable(kernel, backend)`` returns why a backend is invalid, or "". A plugin with an invalid backend adds no
        backends.
        """
        for hook in self._manager.hook.register_kernels.get_hookimpls():
            if hook.plugin_name not in self._kernels:
                origin = self._origins[hook.plugin_name]
                try:
                    self._kernels[origin.plugin] = _backends(hook.function(), unusable)
                except (Exception, SystemExit) as error:
                    text = (
                        str(error)
                        if isinstance(error, AdaptError)
                        else f"register_kernels raised {type_and_message(error)}"
                    )
                    self._refuse(origin, text)
                    self._kernels[origin.plugin] = []
        taken: dict[tuple[str, str], str] = {}
        result = []
        for plugin in sorted(set(self._kernels) - self.without_kernels):
            for kernel, backend in self._kernels[plugin]:
                if taken.setdefault((kernel, backend.name), plugin) == plugin:
                    result.append((kernel, backend))
                else:
                    first = self._origins[taken[kernel, backend.name]]
                    self._refuse(
                        self._origins[plugin], f"backend {backend.name!r} of {kernel}: is already registered by {first}"
                    )
        return result

    def problem_files(self) -> list[Path]:
        """Return the files of known problems of all plugins, by plugin name and then as declared."""
        files: list[Path] = []
        for hook in sorted(self._manager.hook.register_problems.get_hookimpls(), key=lambda one: one.plugin_name):
            origin = self._origins[hook.plugin_name]
            try:
                returned: Any = hook.function()
            except (Exception, SystemExit) as error:
                self._refuse(origin, f"register_problems raised {type_and_message(error)}")
                continue
            if not isinstance(returned, (list, tuple)) or not all(isinstance(one, Path) for one in returned):
                self._refuse(origin, f"register_problems returned {returned!r}, expected a list of paths")
                continue
            files += returned
        return files

    def check_names(
        self, disabled: Iterable[str], allowed: Iterable[str] | None, may_drift: Iterable[str] = ()
    ) -> None:
        """Reject unknown names, because a misspelt ``disable`` would leave the patch enabled.

        Raises:
            SettingsError: a name is unknown; the message suggests the closest one.
        """
        patches = [name for one in self.patches() for name in (one.name, one.full_name)]
        names = [*self.known, *patches]
        unloaded = set(self.known) - set(self._origins)
        for name in (*disabled, *(allowed or ()), *may_drift):
            if name not in names and name.partition(".")[0] not in unloaded:
                close = difflib.get_close_matches(name, names, 1)
                hint = f"did you mean {close[0]!r}?" if close else "`ascend-adapt status` lists the names"
                raise SettingsError(f"{name!r}: no plugin or patch has this name — {hint}")

    def hosts(
        self, patches: Sequence[Registered], known: Mapping[str, CodeBase]
    ) -> tuple[dict[str, CodeBase], list[Registered]]:
        """Return the code bases that patches name, and the patches without an unknown or contradictory code base."""
        hosts, owners = dict(known), dict.fromkeys(known, "ascend_adapt")
        order = list(self._origins)  # plugins in loading order: the declaration of the first one is used
        for one in sorted(patches, key=lambda one: order.index(one.plugin)):
            for host in one.patch.hosts:
                if not isinstance(host, CodeBase):
                    continue
                if hosts.setdefault(host.name, host) != host:
                    self._add_problem(
                        f"code base {host.name!r}: {one} and {owners[host.name]} declare it differently — use another "
                        "name"
                    )
                owners.setdefault(host.name, str(one))
        kept = []
        for one in patches:
            unknown = [host for host in one.patch.hosts if isinstance(host, str) and host not in hosts]
            for host in unknown:
                self._add_problem(
                    f"{one}: code base {host!r} is unknown — pass CodeBase(...) or one of {', '.join(sorted(hosts))}"
                )
            own = [host for host in one.patch.hosts if isinstance(host, CodeBase)]
            if not unknown and all(hosts[host.name] == host for host in own):
                kept.append(one)
        return hosts, kept

    def launch_env(self, device: str, environ: Mapping[str, str]) -> dict[str, str]:
        """Return the environment variables of all plugins, without those already in ``environ``.

        Raises:
            PluginError: a plugin raises an exception, or returns something other than a mapping of strings.
        """
        wanted: dict[str, str] = {}
        for origin in self._origins.values():
            plugin = self._manager.get_plugin(origin.plugin)
            others = [other for other in self._manager.get_plugins() if other is not plugin]
            hook = self._manager.subset_hook_caller("launch_env", remove_plugins=others)
            try:
                answers = hook(device=device, environ=environ)
            except Exception as error:
                raise PluginError(
                    f"{origin}: launch_env raised {type_and_message(error)} — disable it or correct it"
                ) from error
            for variables in answers:
                if not isinstance(variables, Mapping) or not all(map(_is_variable, variables.items())):
                    raise PluginError(
                        f"{origin}: launch_env returned {variables!r}, expected a mapping of strings — correct it"
                    )
                wanted.update(variables)
        return {name: value for name, value in wanted.items() if name not in environ}


def _is_variable(item: tuple[Any, Any]) -> bool:
    name, value = item
    texts = isinstance(name, str) and isinstance(value, str)
    return texts and bool(name) and "=" not in name and "\0" not in name + value


def _name_of(plugin: Any) -> str:
    return str(getattr(plugin, "__name__", type(plugin).__name__))


def _declared(plugin: Any) -> Any:
    """Return the result of the plugin's register_patches, if it is a hookimpl of ascend_adapt."""
    hook = getattr(plugin, "register_patches", None)
    return hook() if hook is not None and hasattr(hook, "ascend_adapt_impl") else ()


def _backends(returned: Any, unusable: Callable[[str, Any], str]) -> list[tuple[str, Any]]:
    pairs = list(returned) if isinstance(returned, (list, tuple)) else [returned]
    named: set[tuple[str, str]] = set()
    for pair in pairs:
        if not (isinstance(pair, tuple) and len(pair) == 2 and isinstance(pair[0], str)):
            raise PluginError(f"register_kernels returned {pair!r}, expected pairs (kernel name, backend)")
        kernel, backend = pair
        if why := unusable(kernel, backend):
            raise PluginError(f"register_kernels: {why}")
        if (kernel, backend.name) in named:
            raise PluginError(f"{kernel}: two backends are named {backend.name!r} — rename one of them")
        named.add((kernel, backend.name))
    return pairs


def _registered(plugin: Any, origin: _Origin, returned: Any) -> tuple[Registered, ...]:
    if not isinstance(returned, (list, tuple)):
        raise PluginError(f"register_patches returned a {type(returned).__name__}, expected a list of patches")
    inside = [
        module for name, module in sys.modules.copy().items() if name.startswith(f"{_name_of(plugin)}.") and module
    ]
    variables = {
        id(value): name for home in (*inside, type(plugin), plugin) for name, value in vars(home).copy().items()
    }
    registered: dict[str, Registered] = {}
    for patch in returned:
        if not isinstance(patch, Patch):
            raise PluginError(f"register_patches returned {patch!r} among the patches, expected patches only")
        name = patch.name or variables.get(id(patch), f"{patch.kind}_{'_'.join(patch.target.path)}")
        if name in registered:
            raise PluginError(f"two patches are named {name!r} — rename one with name=")
        registered[name] = Registered(patch, name, origin.plugin, origin.distribution)
    return tuple(registered.values())
