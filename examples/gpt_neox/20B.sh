#!/usr/bin/env bash
# GPT-NeoX-20B in the native trainer. Options of ascend-run come first: bash 20B.sh --dry-run
set -euo pipefail
source "$(dirname "$0")/../tiny.sh"

MORE=()
if [[ ${#TINY[@]} -gt 0 ]]; then
    MORE=(--pipe-parallel-size 2 --model-parallel-size 1 --num_gpus 2 --global_num_gpus 2 --num-layers 2
        --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64 --train-iters 5
        --train_micro_batch_size_per_gpu 2 --gradient_accumulation_steps 2 --fp16 '{"enabled": false}' --eval-iters 1
        --log-interval 1 --data-path "${TINY}_text_document" --vocab-size 50257 --save "$RUN" --load "$RUN")
fi
ascend-run "$@" --native neox -d "$(dirname "$0")" 20B.yml "${MORE[@]}"
