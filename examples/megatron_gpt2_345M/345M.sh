#!/usr/bin/env bash
# GPT-2 345M from Megatron's own options. Options of ascend-run come first: bash 345M.sh --dry-run
set -euo pipefail
source "$(dirname "$0")/../tiny.sh"

MORE=(--fp16 --save checkpoints/gpt2 --load checkpoints/gpt2)
if [[ -n "${DEEPSPEED_CONFIG:-}" ]]; then MORE+=(--deepspeed_config "$DEEPSPEED_CONFIG"); fi
if [[ ${#TINY[@]} -gt 0 ]]; then
    DATA=${TINY}_text_document VOCAB=$TINY-vocab.json MERGES=$TINY-merges.txt
    MORE=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 64
        --micro-batch-size 2 --global-batch-size 4 --train-iters 5 --log-interval 1 --eval-iters 1)
fi

ascend-run "$@" --native megatron \
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024 --max-position-embeddings 1024 \
    --tensor-model-parallel-size "${TENSOR:-1}" --pipeline-model-parallel-size 1 \
    --micro-batch-size "${MICRO:-4}" --global-batch-size "${GLOBAL:-8}" \
    --train-iters 5000 --lr-decay-iters 320000 --lr 0.00015 --min-lr 1.0e-5 --lr-decay-style cosine \
    --lr-warmup-fraction .01 --weight-decay 1e-2 --clip-grad 1.0 --checkpoint-activations \
    --data-path "${DATA:-data/meg-gpt2_text_document}" --data-impl mmap --split 949,50,1 \
    --vocab-file "${VOCAB:-data/gpt2-vocab.json}" --merge-file "${MERGES:-data/gpt2-merges.txt}" \
    --save-interval 500 --log-interval 10 --eval-interval 100 --eval-iters 10 --distributed-backend nccl "${MORE[@]}"
