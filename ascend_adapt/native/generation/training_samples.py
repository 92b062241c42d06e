"""Text samples that all ranks of a run generate from the model during training."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import torch
import torch.distributed as dist

from ascend_adapt.config.text_samples import TextSamples
from ascend_adapt.config.train_config import Data, TrainConfig
from ascend_adapt.data.tokenizer import TokenizerRequest, load_tokenizer
from ascend_adapt.errors import DataError
from ascend_adapt.native.generation.blank_filling import check_prompts, fill
from ascend_adapt.native.generation.continuation import continue_ids
from ascend_adapt.native.generation.decode_step import DecodeStep
from ascend_adapt.native.generation.generation import Sampling, check_lengths
from ascend_adapt.native.generation.inference_model import InferenceModel
from ascend_adapt.native.model.decoder import Decoder
from ascend_adapt.native.parallel.mesh import Mesh
from ascend_adapt.native.samples.glm_text import load_vocabulary
from ascend_adapt.native.step.data_parallel import before_passes


@dataclass(frozen=True)
class TextSample:
    """A prompt and the generated text: its continuation, or for GLM the prompt with filled blanks."""

    prompt: str
    text: str


class TextSampler:
    """Generates text samples during a run.

    Raises:
        DataError, SettingsError: the tokenizer cannot be loaded, or the model cannot continue a prompt.
    """

    def __init__(self, config: TrainConfig, samples: TextSamples, decoder: Decoder, mesh: Mesh) -> None:
        self.samples, self.decoder = samples, decoder
        model = _TrainedModel(config.model, decoder, mesh)
        prompts, sampling = list(samples.prompts), Sampling(samples.tokens)
        self._texts: Callable[[], list[str]]
        if config.data.blanks is not None:
            glm = load_vocabulary(config.data.blanks.vocabulary)
            check_prompts(model, glm, prompts)
            self._texts = lambda: [one.text for one in fill(model, glm, prompts, sampling)]
            return
        tokenizer = load_tokenizer(_request(config.data))
        if tokenizer.vocab_size > config.model.padded_vocab_size:
            raise DataError(
                f"{config.data.vocab_file}: {tokenizer.vocab_size} ids, expected at most the model's "
                f"{config.model.padded_vocab_size} — pass the vocabulary that the text was tokenized with"
            )
        ids = [[int(one) for one in tokenizer.encoder.encode([prompt])[0]] for prompt in prompts]
        check_lengths(model, ids)
        self._texts = lambda: [one.text for one in continue_ids(model, tokenizer.decode, tokenizer.eod, ids, sampling)]

    def generate(self) -> list[TextSample]:
        """Generate the samples with the current weights; every rank calls it and gets the same samples."""
        before_passes(self.decoder)
        self.decoder.eval()
        # Compiled layers would be recompiled for every length.
        with torch.compiler.set_stance("force_eager"):
            texts = self._texts()
        return [TextSample(prompt, text) for prompt, text in zip(self.samples.prompts, texts, strict=True)]


class _TrainedModel(InferenceModel):
    """The decoder of a run. All data-parallel ranks use the first one's tokens, because ZeRO gathers collectively."""

    def agreed(self, tokens: torch.Tensor) -> torch.Tensor:
        dist.broadcast(tokens, src=0)
        return tokens

    def decode_step(self, rows: int, capacity: int) -> DecodeStep | None:
        # A recorded graph would keep memory that training needs.
        return None


def _request(data: Data) -> TokenizerRequest:
    return TokenizerRequest(data.tokenizer_type, data.vocab_file, data.merge_file)
