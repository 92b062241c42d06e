"""What lands in a target behaves as the original did: pickle, copy, spawn, torch.compile, and odd descriptors."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import pytest
from stand_ins import TERMS, Site, counting

import ascend_adapt
from ascend_adapt import replace, wrap
from ascend_adapt.patches.apply.replacement import refused_call

Enable = Callable[..., ascend_adapt.Status]


def state(name: str = "counting") -> str:
    return ascend_adapt.status()[name].state


def test_a_patched_function_keeps_its_name_signature_and_attributes(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        def function(a, b=2, *, c: int = 3) -> int:
            "What it does."
            return a + b + c
        function.registered = True
        """
    )
    import upstream

    before = inspect.signature(upstream.function)
    enable(counting("upstream:function", []))
    assert inspect.isfunction(upstream.function)
    assert upstream.function.__module__ == "upstream"
    assert upstream.function.__qualname__ == upstream.function.__name__ == "function"
    assert upstream.function.__doc__ == "What it does."
    assert upstream.function.registered
    assert inspect.signature(upstream.function) == before
    assert upstream.function(1, c=4) == 7


def test_patched_functions_pickle_copy_and_spawn(site: Site) -> None:
    """Case patch-4, and the plain process of patch-3."""
    site.write(
        upstream="""
        class Holder:
            def __init__(self, function): self.function = function
            def method(self): return "method"
            @classmethod
            def of_class(cls): return cls.__name__
            @staticmethod
            def static(): return "static"

        class Sub(Holder):
            pass

        def function(x=1): return x
        def work(queue, x): queue.put(x + 1)
        HOLDER = Holder(None)
        """,
        client="from upstream import function as taken",
    )
    uses = """
        import pickle, functools, copy, multiprocessing, types
        import upstream, client
        sub = upstream.Sub(upstream.function)
        upstream.HOLDER.function = upstream.function
        picklable = [upstream.function, client.taken, functools.partial(upstream.function, 5), upstream.HOLDER,
                     upstream.Holder.method, sub, sub.method, upstream.Sub.method, upstream.Holder.of_class,
                     upstream.Sub.of_class, upstream.Holder.static, upstream.Sub.static, [upstream.Sub]]
        texts = [pickle.dumps(one) for one in picklable]
        for one, text in zip(picklable, texts):
            again = pickle.loads(text)
            assert type(again) is type(one)
            if isinstance(one, types.FunctionType):
                assert again is one
        module = types.ModuleType("holder")
        module.function = upstream.function
        assert copy.deepcopy(vars(module)["function"]) is upstream.function
        assert copy.deepcopy(upstream.HOLDER).function is upstream.function
        assert functools.partial(upstream.function, 5)() == 5
        context = multiprocessing.get_context("spawn")
        queue = context.SimpleQueue()
        child = context.Process(target=upstream.work, args=(queue, 1))
        child.start()
        assert queue.get() == 2
        child.join()
        assert child.exitcode == 0
        open("pickled", "wb").write(pickle.dumps(texts))
    """.replace('open("pickled", "wb").write(', '__import__("pathlib").Path("pickled").write_bytes(')
    names = ("function", "work", "Holder.method", "Holder.of_class", "Holder.static", "Sub.method", "Sub.of_class")
    site.run(
        f"""
        import ascend_adapt
        from stand_ins import counting, plugin
        calls = []
        names = {(*names, "Sub.static")}
        ascend_adapt.enable(plugins=[plugin(*(counting(f"upstream:{{n}}", calls, name=n) for n in names))])
        {uses}
        assert not [one for one in ascend_adapt.status().outcomes if one.state == "failed"]
        assert len(calls) == 1  # partial(function)(); the spawned child is plain
        """
    )
    site.run(
        """
        import pathlib, pickle
        for text in pickle.loads(pathlib.Path("pickled").read_bytes()):
            pickle.loads(text)
        """,
        plain=True,
    )


def test_a_copied_module_holder_and_mappings_keep_the_patched_function(site: Site, enable: Enable) -> None:
    import copy

    site.write(
        upstream="def function(): return 1\nclass Config:\n    pass\nCONFIG = Config()\nCONFIG.hook = function\n"
    )
    import upstream

    calls: list[Any] = []
    enable(counting("upstream:function", calls))
    upstream.CONFIG.late = upstream.function
    assert copy.deepcopy(upstream.CONFIG).late is upstream.function
    assert copy.deepcopy(upstream.CONFIG).hook() == 1


@pytest.mark.usefixtures("needs_torch")
def test_torch_compiles_patched_functions_whole(site: Site) -> None:
    """Case patch-4: fullgraph, a patched function and a function that calls patched methods."""
    site.write(
        upstream="""
        import torch

        def function(x): return torch.relu(x) + 1

        class Layer(torch.nn.Module):
            def __init__(self):
                super().__init__()
                self.linear = torch.nn.Linear(2, 2)
            def scale(self, x): return x * 2
            @torch.no_grad()
            def frozen(self, x): return x * 3
            @staticmethod
            def shift(x): return x + 1
            @classmethod
            def of_class(cls, x): return x - 1
            @property
            def factor(self): return 4
            def forward(self, x):
                return self.linear(self.of_class(self.shift(self.scale(x)))) * self.factor

        class Deep(Layer):
            pass
        """
    )
    site.run(
        """
        import warnings
        warnings.simplefilter("ignore")
        import torch, upstream, ascend_adapt
        from stand_ins import TERMS, plugin
        x = torch.randn(2, 2)
        layer, deep = upstream.Layer(), upstream.Deep()
        plain = [upstream.function(x), layer(x), deep(x), deep.scale(x), layer.frozen(x)]

        def through(target):
            @ascend_adapt.wrap(target, name=target.replace(":", "."), **TERMS)
            def proceed(call):
                return call.proceed()
            return proceed

        names = ("function", "Layer.scale", "Layer.shift", "Layer.of_class", "Layer.factor", "Layer.forward",
                 "Layer.frozen", "Deep.scale")
        ascend_adapt.enable(plugins=[plugin(*(through(f"upstream:{name}") for name in names))])
        assert [one.state for one in ascend_adapt.status().outcomes if one.plugin == "stand_in"] == ["applied"] * 8

        def compiled(f):
            return torch.compile(f, fullgraph=True, backend="eager")

        patched = [compiled(upstream.function)(x), compiled(layer)(x), compiled(deep)(x),
                   compiled(lambda x: deep.scale(x))(x), compiled(layer.frozen)(x)]
        for a, b in zip(plain, patched):
            torch.testing.assert_close(a, b)
        assert not patched[4].requires_grad
        """
    )


def test_a_coroutine_function_stays_one(site: Site, enable: Enable) -> None:
    import asyncio

    site.write(
        upstream="""
        async def function(x): return x + 1
        class Engine:
            async def method(self, x): return x + 2
            def steps(self):
                received = yield 1
                yield received
                return "end"
        async def stream():
            yield 1
        """
    )
    import upstream

    calls: list[Any] = []
    names = ("function", "Engine.method", "Engine.steps", "stream")
    enable(*(counting(f"upstream:{name}", calls, name=name) for name in names))
    assert inspect.iscoroutinefunction(upstream.function)
    assert inspect.iscoroutinefunction(upstream.Engine.method)
    assert inspect.iscoroutinefunction(upstream.Engine().method)
    assert inspect.isgeneratorfunction(upstream.Engine.steps)
    assert asyncio.run(upstream.function(1)) == 2
    assert asyncio.run(upstream.Engine().method(1)) == 3
    steps = upstream.Engine().steps()
    assert next(steps) == 1
    assert steps.send("sent") == "sent"
    with pytest.raises(StopIteration, match="end"):
        next(steps)

    async def collect() -> list[int]:
        return [item async for item in upstream.stream()]

    assert asyncio.run(collect()) == [1]
    assert len(calls) == 4


def test_a_wrapper_of_a_coroutine_function_need_not_be_one(site: Site, enable: Enable) -> None:
    import asyncio

    site.write(upstream="async def function(): raise AssertionError")
    import upstream

    @wrap("upstream:function", **TERMS)
    def instead(wrapped: Any, instance: Any, args: Any, kwargs: Any) -> Any:
        return "done"

    enable(instead)
    assert asyncio.run(upstream.function()) == "done"


def test_a_cached_function_keeps_its_cache(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        import functools
        @functools.lru_cache(maxsize=None)
        def function(x): return object()
        class Engine:
            @functools.lru_cache(maxsize=None)
            def method(self, x): return x
        """
    )
    import upstream

    calls: list[Any] = []
    enable(*(counting(f"upstream:{name}", calls, name=name) for name in ("function", "Engine.method")))
    assert upstream.function(1) is upstream.function(1)
    assert upstream.function.cache_info().hits == 1
    upstream.function.cache_clear()
    assert upstream.function.cache_info().currsize == 0
    assert upstream.Engine().method(3) == 3
    assert upstream.Engine.method.cache_info().misses == 1
    assert len(calls) == 3


def test_a_builtin_in_a_class_is_not_bound(site: Site, enable: Enable) -> None:
    """A builtin or partial stored in a class is no descriptor, so it never gets the instance."""
    site.write(
        upstream="""
        import functools, math
        class Engine:
            root = math.sqrt
            power = functools.partial(pow, 2)
        """
    )
    import upstream

    calls: list[Any] = []
    enable(*(counting(f"upstream:Engine.{name}", calls, name=name) for name in ("root", "power")))
    assert upstream.Engine().root(9) == upstream.Engine.root(9) == 3
    assert upstream.Engine().power(3) == upstream.Engine.power(3) == 8
    assert calls == [None] * 4


def test_a_bound_method_as_module_function_keeps_pickling(site: Site, enable: Enable) -> None:
    import pickle

    site.write(
        upstream="""
        import functools
        class Source:
            def draw(self): return 1
        draw = Source().draw
        fixed = functools.partial(max, 1)
        """
    )
    import upstream

    for one in (upstream.draw, upstream.fixed):
        pickle.loads(pickle.dumps(one))
    enable(*(counting(f"upstream:{name}", [], name=name) for name in ("draw", "fixed")))
    assert upstream.draw() == 1
    assert upstream.fixed(3) == 3
    assert pickle.loads(pickle.dumps(upstream.draw)) is upstream.draw
    assert pickle.loads(pickle.dumps(upstream.fixed)) is upstream.fixed


def test_odd_owners_take_a_wrap_and_give_it_back(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        import abc, dataclasses, enum, typing

        class Slotted:
            __slots__ = ("x",)
            def method(self): return "slotted"

        @dataclasses.dataclass(frozen=True)
        class Data:
            x: int = 1
            def method(self): return self.x

        class Colour(enum.Enum):
            RED = 1
            def method(self): return self.value

        class Pair(typing.NamedTuple):
            x: int
            def method(self): return self.x

        T = typing.TypeVar("T")
        class Generic(typing.Generic[T]):
            def method(self): return "generic"

        class Abstract(abc.ABC):
            @abc.abstractmethod
            def method(self): return "abstract"
        class Concrete(Abstract):
            def method(self): return super().method()

        class Meta(type):
            def made(cls): return cls.__name__
        class WithMeta(metaclass=Meta):
            pass

        class Typed(typing.Protocol):
            def method(self): ...
        """
    )
    import upstream

    calls: list[Any] = []
    classes = ("Slotted", "Data", "Colour", "Pair", "Generic", "Abstract")
    before = {name: dict(vars(getattr(upstream, name))) for name in classes}
    status = enable(
        *(counting(f"upstream:{name}.method", calls, name=name) for name in classes),
        counting("upstream:Meta.made", calls, name="Meta"),
        counting("upstream:Data.__init__", calls, name="init"),
    )
    assert {one.state for one in status.outcomes if one.plugin == "stand_in"} == {"applied"}
    assert upstream.Slotted().method() == "slotted"
    assert upstream.Data(3).method() == 3
    assert upstream.Colour.RED.method() == 1
    assert upstream.Pair(5).method() == 5
    assert upstream.Generic[int]().method() == "generic"
    assert upstream.Concrete().method() == "abstract"
    assert upstream.WithMeta.made() == "WithMeta"
    assert len(calls) == 8
    assert upstream.Abstract.method.__isabstractmethod__
    with pytest.raises(TypeError, match="abstract"):
        upstream.Abstract()
    ascend_adapt.disable()
    assert before == {name: dict(vars(getattr(upstream, name))) for name in classes}


@pytest.mark.parametrize("name", ["__init_subclass__", "__class_getitem__", "__call__", "__getattr__", "__len__"])
def test_special_methods_are_wrapped_where_python_looks(site: Site, enable: Enable, name: str) -> None:
    site.write(
        upstream="""
        class Engine:
            def __init_subclass__(cls, /, **kwargs):
                super().__init_subclass__(**kwargs)
                cls.seen = True
            def __class_getitem__(cls, item): return item
            def __call__(self): return "called"
            def __getattr__(self, name): return name
            def __len__(self): return 7
        """
    )
    import upstream

    calls: list[Any] = []
    enable(counting(f"upstream:Engine.{name}", calls))
    engine = upstream.Engine()
    sub = type("Sub", (upstream.Engine,), {})
    assert (sub.seen, upstream.Engine[3], engine(), engine.anything, len(engine)) == (True, 3, "called", "anything", 7)
    assert len(calls) == 1


def test_making_instances_works_after_a_wrap_of_new_or_init_was_reverted(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        class WithInit:
            def __init__(self, x): self.x = x
        class WithNew:
            def __new__(cls, x):
                self = super().__new__(cls)
                self.x = x
                return self
        class Base:
            def __new__(cls, *args): return super().__new__(cls)
        class Sub(Base):
            def __init__(self, x): self.x = x
        """
    )
    import upstream

    calls: list[Any] = []
    targets = ("WithInit.__init__", "WithInit.__new__", "WithNew.__new__", "WithNew.__init__", "Sub.__new__")
    enable(*(counting(f"upstream:{target}", calls, name=target) for target in targets))
    assert (upstream.WithInit(1).x, upstream.WithNew(2).x, upstream.Sub(3).x) == (1, 2, 3)
    ascend_adapt.disable()
    assert (upstream.WithInit(1).x, upstream.WithNew(2).x, upstream.Sub(3).x) == (1, 2, 3)


@pytest.mark.parametrize(
    ("source", "word"),
    [
        ("class Thing: pass", "class"),
        ("Thing = 3", "int"),
        (
            "import functools\nclass A:\n    def f(self): pass\nThing = functools.cached_property(A.f)",
            "cached_property",
        ),
        ("class P:\n    def __set__(self, i, v): pass\nThing = property(fset=lambda s, v: None)", "getter"),
    ],
)
def test_what_cannot_be_stood_for_is_drift(site: Site, enable: Enable, source: str, word: str) -> None:
    site.write(upstream=source)
    import upstream

    before = upstream.Thing
    outcome = enable(counting("upstream:Thing", []))["counting"]
    assert outcome.state == "drifted"
    assert word in outcome.reason
    assert upstream.Thing is before


def test_an_inherited_wrap_calls_what_the_class_would_have_inherited(site: Site, enable: Enable) -> None:
    """A wrap must not cut a sibling out of the order in which methods are resolved."""
    site.write(
        upstream="""
        class Base:
            def step(self): return ["base"]
            @classmethod
            def made(cls): return ["base"]
        class Mixin(Base): pass
        class Other(Base):
            def step(self): return ["other", *super().step()]
            @classmethod
            def made(cls): return ["other", *super().made()]
        class Engine(Mixin, Other): pass
        """
    )
    import upstream

    calls: list[Any] = []
    enable(*(counting(f"upstream:Mixin.{name}", calls, name=name) for name in ("step", "made")))
    assert upstream.Engine().step() == ["other", "base"]
    assert upstream.Engine.made() == ["other", "base"]
    assert len(calls) == 2


def test_a_patch_on_a_base_is_seen_through_a_patch_on_a_class_that_inherits_it(site: Site, enable: Enable) -> None:
    site.write(upstream="class Base:\n    def step(self): return 1\nclass Sub(Base):\n    pass\n")
    import upstream

    base: list[Any] = []
    sub: list[Any] = []
    enable(counting("upstream:Sub.step", sub, name="sub"), counting("upstream:Base.step", base, name="base"))
    assert upstream.Sub().step() == 1
    assert (len(sub), len(base)) == (1, 1)
    ascend_adapt.enable(disable=["base"])
    assert upstream.Sub().step() == 1
    assert (len(sub), len(base)) == (2, 1)


def test_replace_stands_for_every_call_of_the_original(site: Site, enable: Enable) -> None:
    site.write(
        upstream="""
        def function(x, y=1): return x + y
        class Engine:
            def method(self, x): return x
            @classmethod
            def of_class(cls): return 0
            @staticmethod
            def static(x): return x
            @property
            def value(self): return 1
        LIMIT = 3
        """
    )
    import upstream

    before = {**vars(upstream.Engine)}

    @replace("upstream:function", **TERMS)
    def function(x: int, y: int = 1) -> int:
        return 10 * (x + y)

    @replace("upstream:Engine.method", **TERMS)
    def method(self: Any, x: int) -> Any:
        return type(self).__name__, x

    @replace("upstream:Engine.of_class", **TERMS)
    def of_class(cls: Any) -> Any:
        return cls.__name__

    @replace("upstream:Engine.static", **TERMS)
    def static(x: int) -> int:
        return -x

    @replace("upstream:Engine.value", **TERMS)
    def value(self: Any) -> int:
        return 2

    enable(function, method, of_class, static, value, replace("upstream:LIMIT", value=9, name="limit", **TERMS))
    engine = upstream.Engine()
    assert upstream.function(1, y=2) == 30
    assert upstream.function.__module__ == "upstream"
    assert (engine.method(1), engine.of_class(), engine.static(4), engine.value) == (("Engine", 1), "Engine", -4, 2)
    assert upstream.LIMIT == 9
    ascend_adapt.disable()
    assert upstream.LIMIT == 3
    assert dict(vars(upstream.Engine)) == before


def test_a_function_given_as_value_pickles_by_the_targets_name(site: Site, enable: Enable) -> None:
    import pickle

    site.write(upstream="def function(x): return x\n", mine="def other(x): return -x\n")
    import mine
    import upstream

    enable(replace("upstream:function", value=mine.other, name="given", **TERMS))
    assert upstream.function(2) == -2
    assert pickle.loads(pickle.dumps(upstream.function)) is upstream.function
    assert b"mine" not in pickle.dumps(upstream.function)


def test_a_replacement_that_accepts_less_is_drift(site: Site, enable: Enable) -> None:
    site.write(upstream="def function(x, *, mask=None): return x")
    import upstream

    before = upstream.function

    @replace("upstream:function", **TERMS)
    def short(x: int) -> int:
        return x

    outcome = enable(short)["short"]
    assert outcome.state == "drifted"
    assert "mask=" in outcome.reason
    assert upstream.function is before


@pytest.mark.parametrize(
    ("theirs", "ours", "refused"),
    [
        ("def f(a, b=1)", "def f(a, b=1)", ""),
        ("def f(a, b=1)", "def f(a, b)", "only the required arguments"),
        ("def f(a, b=1)", "def f(*args, **kwargs)", ""),
        ("def f(a, b)", "def f(b, a)", ""),
        ("def f(a, b)", "def f(x, y)", "a="),
        ("def f(a, b, /)", "def f(x, y)", ""),
        ("def f(a, /, *, c)", "def f(a, /, *, c)", ""),
        ("def f(a, *, c)", "def f(a)", "every argument by position"),
        ("def f(a, *, c=1)", "def f(a)", "c="),
        ("def f(*args)", "def f(a)", "every argument by position"),
        ("def f(a, **kwargs)", "def f(a)", "further keywords"),
        ("def f(a=1, b=2)", "def f(a=1, *, b=2)", "every argument by position"),
        ("def f()", "def f(extra=1)", ""),
        ("def f()", "def f(extra)", "every argument by position"),
    ],
)
def test_refused_call(theirs: str, ours: str, refused: str) -> None:
    def signature(text: str) -> inspect.Signature:
        namespace: dict[str, Any] = {}
        exec(f"{text}: pass", namespace)
        return inspect.signature(namespace["f"])

    assert refused_call(signature(theirs), signature(ours)) == refused


def test_a_constant_where_a_function_was_is_drift_and_never_reaches_unless(site: Site, enable: Enable) -> None:
    site.write(target="f = 1\n")
    enable(wrap("target:f", unless=lambda original: original.__name__, name="one", **TERMS)(lambda *_: None))
    import target

    assert ascend_adapt.status()["one"].state == "drifted"
    assert target.f == 1


def test_defaults_are_the_originals(site: Site, enable: Enable) -> None:
    """As code reads them that fills in what a caller left out; a call without self fails as the original does."""
    site.write(
        upstream="""
        def function(x=1, /, y=2, *, z=3): return x, y, z
        async def later(x=1): return x
        class Base:
            def inherited(self, a=1, b=2, *, c=3): return a, b, c
        class Engine(Base):
            def method(self, a=1, b=2, c=3, d=4): return a, b, c, d
            @classmethod
            def of_class(cls, a=1, *, b): return a, b
            @staticmethod
            def static(a, b=2): return a, b
        """
    )
    import upstream

    def read() -> list[Any]:
        engine = upstream.Engine
        of_class, static = vars(engine)["of_class"].__func__, vars(engine)["static"].__func__
        functions = [upstream.function, upstream.later, engine.inherited, engine.method, of_class, static]
        return [(one.__defaults__, one.__kwdefaults__, inspect.signature(one)) for one in functions]

    def without_self() -> list[str]:
        said = []
        for method in (upstream.Engine.method, upstream.Engine.inherited):
            with pytest.raises(TypeError) as raised:
                method()
            said.append(str(raised.value))
        return said

    before, refused = read(), without_self()
    names = ["function", "later", *(f"Engine.{name}" for name in ("inherited", "method", "of_class", "static"))]
    enable(*(counting(f"upstream:{name}", [], name=name) for name in names))
    assert {one.state for one in ascend_adapt.status() if one.plugin == "stand_in"} == {"applied"}
    assert read() == before
    assert without_self() == refused
    assert upstream.Engine().method(5) == (5, 2, 3, 4)
    assert upstream.Engine().inherited(b=7) == (1, 7, 3)
