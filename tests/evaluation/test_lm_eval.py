"""lm-eval with our model beside its own backend for transformers, on local files."""

from __future__ import annotations

import json

import pytest
from evaluation.conftest import CONTEXT

lm_eval = pytest.importorskip("lm_eval", reason="the extra eval is not installed")
tokenizers = pytest.importorskip("tokenizers")

from lm_eval.config.evaluate_config import EvaluatorConfig  # noqa: E402
from lm_eval.models.huggingface import HFLM  # noqa: E402
from lm_eval.tasks import TaskManager  # noqa: E402

from ascend_adapt.evaluation.lm_eval import AscendAdaptLM  # noqa: E402

TEXTS = ["the cat sat on the mat", "one two three four", "a longer text that has some more words than the others do"]
TASKS = {
    "words": """
output_type: loglikelihood
doc_to_text: "{{text.split(' ')[:-1]|join(' ')}}"
doc_to_target: "{{' ' + text.split(' ')[-1]}}"
metric_list: [{metric: perplexity, aggregation: perplexity}, {metric: acc, aggregation: mean}]
""",
    "texts": """
output_type: loglikelihood_rolling
doc_to_text: ""
doc_to_target: "{{text * 4}}"
metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}]
""",
    "continued": """
output_type: generate_until
doc_to_text: "{{text}}"
doc_to_target: "{{text}}"
generation_kwargs: {until: ["e"], max_gen_toks: 12, do_sample: false}
metric_list: [{metric: exact_match}]
""",
}


@pytest.fixture(scope="module")
def folder(folders, tmp_path_factory):
    """GPT-2 with a tokenizer of bytes, and the tasks."""
    from transformers import PreTrainedTokenizerFast

    alphabet = sorted(tokenizers.pre_tokenizers.ByteLevel.alphabet())
    vocabulary = {token: number for number, token in enumerate(["<|endoftext|>", *alphabet])}
    tokenizer = tokenizers.Tokenizer(tokenizers.models.BPE(vocabulary, []))
    tokenizer.pre_tokenizer = tokenizers.pre_tokenizers.ByteLevel(add_prefix_space=False)
    tokenizer.decoder = tokenizers.decoders.ByteLevel()
    made = PreTrainedTokenizerFast(tokenizer_object=tokenizer, eos_token="<|endoftext|>")
    made.save_pretrained(folders["gpt2"])
    tasks = tmp_path_factory.mktemp("tasks")
    (tasks / "data.jsonl").write_text("".join(json.dumps({"text": text}) + "\n" for text in TEXTS))
    for name, content in TASKS.items():
        files = (
            f"dataset_path: json\ndataset_kwargs: {{data_files: {{test: {tasks / 'data.jsonl'}}}}}\ntest_split: test"
        )
        (tasks / f"{name}.yaml").write_text(f"task: {name}\n{files}\n{content}")
    return folders["gpt2"], tasks


def test_results_are_those_of_lm_evals_own_backend(folder):
    model, tasks = folder
    results = []
    for one in (
        AscendAdaptLM(str(model), batch_size=2, device=EvaluatorConfig().device),
        HFLM(pretrained=str(model), dtype="float32", device="cpu", batch_size=2, max_length=CONTEXT),
    ):
        found = lm_eval.simple_evaluate(
            one, tasks=list(TASKS), task_manager=TaskManager(include_path=str(tasks)), bootstrap_iters=0
        )
        texts = [sample["resps"] for sample in found["samples"]["continued"]]
        numbers = {name: found["results"][name] for name in ("words", "texts")}
        results.append((texts, {f"{name} {key}": value for name in numbers for key, value in numbers[name].items()}))
    (our_texts, ours), (their_texts, theirs) = results
    assert our_texts == their_texts
    for key in ("words perplexity,none", "words acc,none", "texts word_perplexity,none", "texts byte_perplexity,none"):
        assert ours[key] == pytest.approx(theirs[key], rel=1e-4)
