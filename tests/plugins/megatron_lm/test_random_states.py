"""The tracker of RNG states: a fork draws from the named state, and restores the device's own."""

from __future__ import annotations

import logging
from types import SimpleNamespace

import pytest
import torch

from ascend_adapt_plugins.megatron_lm import random_states

NAME = "model-parallel-rng"


@pytest.fixture
def device(monkeypatch):
    """Return a generator that stands for the GPU's."""
    generator = torch.Generator().manual_seed(1)
    monkeypatch.setattr(torch.cuda, "default_generators", (generator,))
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    return generator


def tracker(**attributes):
    return SimpleNamespace(
        states_={NAME: torch.Generator().manual_seed(2).get_state()}, use_cudagraphable_rng=False, **attributes
    )


def fork(of, *args):
    def upstream(name=NAME):
        return "Megatron's own"

    return random_states.fork_with_one_generator_lookup.function(upstream, of, args, {})


def drawn(generator):
    return torch.rand(3, generator=generator).tolist()


@pytest.mark.parametrize("args", [(), (NAME,)])
@pytest.mark.parametrize("attributes", [{}, {"_current_state_name": "default-rng"}])
def test_a_fork_draws_from_its_state_which_continues_in_the_next_fork(device, args, attributes):
    of, own, tracked = tracker(**attributes), torch.Generator().manual_seed(1), torch.Generator().manual_seed(2)
    for _ in range(2):
        assert drawn(device) == drawn(own)
        with fork(of, *args):
            assert drawn(device) == drawn(tracked)
            if attributes:
                assert of._current_state_name == NAME
        assert vars(of).get("_current_state_name") == attributes.get("_current_state_name")
    assert torch.equal(of.states_[NAME], tracked.get_state())


def test_a_fork_may_be_the_first_use_of_the_device(monkeypatch):
    """torch creates the generators when it initializes CUDA, such as when it is asked for the current device."""
    monkeypatch.setattr(torch.cuda, "default_generators", ())

    def current_device():
        torch.cuda.default_generators = (torch.Generator(),)
        return 0

    monkeypatch.setattr(torch.cuda, "current_device", current_device)
    with fork(tracker()):
        assert drawn(torch.cuda.default_generators[0]) == drawn(torch.Generator().manual_seed(2))


def test_a_fork_that_fails_restores_the_state(device):
    before = device.get_state()
    context = fork(tracker(_current_state_name="default-rng"))
    context.__enter__()
    drawn(device)
    assert not context.__exit__(OSError, OSError(), None)
    assert torch.equal(device.get_state(), before)


def test_a_warning_if_the_cpus_state_changes(device, caplog):
    with caplog.at_level(logging.WARNING), fork(tracker()):
        torch.rand(1)
    assert "CPU RNG state changed" in caplog.text


def test_nested_forks_generators_of_graphs_and_unknown_names_are_megatrons(device):
    assert fork(tracker(_current_state_name=NAME)) == "Megatron's own"
    assert fork(tracker(), "another") == "Megatron's own"
    of_graphs = tracker()
    of_graphs.use_cudagraphable_rng = True
    assert fork(of_graphs) == "Megatron's own"
