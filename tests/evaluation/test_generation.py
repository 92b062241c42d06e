"""Generation beside transformers' own generate: batches, the cache, sampling, and where texts end."""

from __future__ import annotations

import pytest
import torch
from evaluation.conftest import CONFIGS, CONTEXT

from ascend_adapt.errors import DataError, SettingsError
from ascend_adapt.native import device as devices
from ascend_adapt.native.generation.generation import Sampling, drawn, filtered, generate

PROMPTS = [list(b"a short one"), list(b"The quick brown fox"), list(b"x")]
GREEDY = Sampling(max_new_tokens=24)


@pytest.mark.parametrize("use_cache", [True, False], ids=["cache", "no cache"])
@pytest.mark.parametrize("name", CONFIGS)
def test_ragged_batch_gives_the_tokens_of_transformers(ours, theirs, name, use_cache):
    found = generate(ours[name], PROMPTS, GREEDY, use_cache=use_cache)
    for prompt, one in zip(PROMPTS, found, strict=True):
        expected = theirs[name].generate(
            torch.tensor([prompt]), max_new_tokens=24, do_sample=False, eos_token_id=None, pad_token_id=0
        )
        assert one.tokens == expected[0, len(prompt) :].tolist()


def test_prompts_of_one_length_need_no_mask(ours):
    alike = [list(b"same"), list(b"size")]
    together = generate(ours["gpt2"], alike, GREEDY)
    assert [generate(ours["gpt2"], [one], GREEDY)[0] for one in alike] == together


def test_top_k_then_top_p_leaves_what_transformers_leaves():
    logits = torch.randn(5, 100, generator=torch.Generator().manual_seed(0)) * 3
    from transformers.generation import logits_process

    theirs = logits_process.TopPLogitsWarper(0.7)(None, logits_process.TopKLogitsWarper(20)(None, logits))
    assert torch.equal(filtered(logits, 20, 0.7), theirs)


def test_draws_of_a_prompt_do_not_depend_on_its_batch(ours):
    sampling = Sampling(max_new_tokens=12, temperature=1.3, top_k=50, seed=7)
    together = generate(ours["gpt2"], PROMPTS, sampling)
    assert generate(ours["gpt2"], PROMPTS, sampling, batch_size=1) == together
    assert generate(ours["gpt2"], PROMPTS, Sampling(12, 1.3, 50, seed=8)) != together


def test_a_row_that_ends_leaves_the_batch_and_others_go_their_way(ours):
    whole = generate(ours["gpt2"], PROMPTS, GREEDY)
    end = whole[1].tokens[5]
    cut = generate(ours["gpt2"], PROMPTS, GREEDY, ends=[end])
    for full, one in zip(whole, cut, strict=True):
        if end in full.tokens:
            assert (one.tokens, one.finish) == (full.tokens[: full.tokens.index(end)], "eod")
        else:
            assert one == full


def test_it_ends_where_the_context_is_full(ours):
    prompts = [list(b"y" * (CONTEXT - 3)), list(b"z")]
    full, other = generate(ours["gpt2"], prompts, GREEDY)
    assert (len(full.tokens), full.finish) == (3, "context")
    assert (len(other.tokens), other.finish) == (24, "length")


def test_prompts_without_room_or_tokens_are_named_together(ours):
    with pytest.raises(DataError, match=r"prompt 1: has no tokens; prompt 2: 64 tokens, expected fewer .* of 64 — "):
        generate(ours["gpt2"], [[], [1] * CONTEXT, [1]], GREEDY)


def test_wrong_settings_are_named_together():
    with pytest.raises(SettingsError, match=r"--temperature: -1.*--top-p: 0"):
        Sampling(temperature=-1, top_p=0)


@pytest.fixture
def recorded_steps(monkeypatch):
    """Steps of fixed shapes, as on a GPU. A CPU has no graphs: a function that repeats the launches stands for one."""
    monkeypatch.setattr(devices, "has_graphs", lambda device: True)
    monkeypatch.setattr(devices, "recorded", lambda launch: launch)
    monkeypatch.setattr(devices, "tokens_between_waits", lambda device: 5)


@pytest.mark.parametrize("name", CONFIGS)
def test_recorded_steps_give_the_same_tokens_and_ends(ours, name, recorded_steps, monkeypatch):
    prompts, stop = [*PROMPTS, list(b"y" * (CONTEXT - 3))], Sampling(24, 1.3, seed=7)
    for sampling in (GREEDY, stop):
        found = generate(ours[name], prompts, sampling, batch_size=3)
        end = found[1].tokens[7]
        cut = generate(ours[name], prompts, sampling, ends=[end])
        with monkeypatch.context() as eager:
            eager.setattr(devices, "has_graphs", lambda device: False)
            eager.setattr(devices, "tokens_between_waits", lambda device: 1)
            assert generate(ours[name], prompts, sampling) == found
            assert generate(ours[name], prompts, sampling, ends=[end]) == cut
    ours[name]._decode_step = None


def test_draws_follow_the_probabilities_and_never_give_an_impossible_token():
    probabilities = torch.tensor([0.0, 0.1, 0.0, 0.6, 0.3, 0.0]).expand(20000, 6)
    draws = torch.rand(20000, generator=torch.Generator().manual_seed(0))
    counts = torch.bincount(drawn(probabilities, draws), minlength=6) / 20000
    # Five standard deviations of a share.
    assert (counts - probabilities[0]).abs().max() < 5 * (0.25 / 20000) ** 0.5
    assert counts[[0, 2, 5]].sum() == 0
    largest = torch.tensor([1 - 2.0**-24])
    assert drawn(probabilities[:1], largest).item() == 4
    assert drawn(probabilities[:1], torch.zeros(1)).item() == 1
