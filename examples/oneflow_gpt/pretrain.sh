#!/usr/bin/env bash
# Options that all sizes share. Options of ascend-run come first: bash 345M.sh --dry-run --device cpu
set -euo pipefail
source "$(dirname "$0")/../tiny.sh"

MORE=(--fp16 --load "${CHECKPOINT:-checkpoint}" --save "${CHECKPOINT:-checkpoint}")
if [[ ${#TINY[@]} -gt 0 ]]; then
    DATASET=${TINY}_text_document TRAIN_ITERS=5 LOG_INTERVAL=1
    MORE=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64
        --micro-batch-size 2 --global-batch-size 4)
fi

ascend-run "$@" --native oneflow "${SIZE[@]}" \
    --dataset "${DATASET:-gpt_sample_dataset_text_document}" \
    --split 949,50,1 \
    --vocab-size 50257 \
    --train-iters "${TRAIN_ITERS:-500000}" \
    --learning-rate 0.00015 \
    --min-lr 1.0e-5 \
    --lr-decay-style cosine \
    --lr-decay-iters 320000 \
    --lr-warmup-fraction 0.01 \
    --optimizer adamw \
    --weight-decay 1e-2 \
    --clip-grad 1.0 \
    --initial-loss-scale 4294967296 \
    --checkpoint-activations \
    --save-interval 10000 \
    --log-interval "${LOG_INTERVAL:-100}" "${MORE[@]}"
