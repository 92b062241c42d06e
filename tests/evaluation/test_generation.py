"""Generation beside transformers' own generate: batches, the cache, sampling, and where texts end."""

from __future__ import annotations

import pytest
import torch
from evaluation.conftest import CONFIGS, CONTEXT

from ascend_adapt.errors import DataError, SettingsError
from ascend_adapt.evaluation.generation import Sampling, filtered, generate

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
