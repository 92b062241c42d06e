"""GPT without DeepSpeed's engine, on deepspeedai's own functions.

Its pretrain_gpt.py reads DeepSpeed's configuration with and without --deepspeed, and so needs one.
"""

import pretrain_gpt
from megatron.arguments import core_transformer_config_from_args
from megatron.core.enums import ModelType
from megatron.global_vars import get_args
from megatron.model import GPTModel
from megatron.training import pretrain


def model_provider(pre_process: bool = True, post_process: bool = True) -> GPTModel:
    config = core_transformer_config_from_args(get_args())
    return GPTModel(config, num_tokentypes=0, pre_process=pre_process, post_process=post_process)


if __name__ == "__main__":
    pretrain(
        pretrain_gpt.train_valid_test_datasets_provider,
        model_provider,
        ModelType.encoder_or_decoder,
        pretrain_gpt.forward_step,
        args_defaults={"tokenizer_type": "GPT2BPETokenizer"},
        data_post_process=pretrain_gpt.data_post_process,
    )
