#!/usr/bin/env bash
# GLM-10B in the native trainer. Options of ascend-run come first: bash pretrain.sh --dry-run
set -euo pipefail
source "$(dirname "$0")/../tiny.sh"

MORE=()
if [[ ${#TINY[@]} -gt 0 ]]; then
    set -- --nproc 1 "$@"
    vocabulary=$RUN/vocabulary
    mkdir -p "$vocabulary"
    cp "$TINY-vocab.json" "$vocabulary/vocab.json"
    cp "$TINY-merges.txt" "$vocabulary/merges.txt"
    MORE=(--num-layers 2 --hidden-size 64 --num-attention-heads 4 --seq-length 64 --max-position-embeddings 128
        --batch-size 2 --train-iters 5 --log-interval 1 --eval-iters 1 --train-data "$TINY.jsonl"
        --tokenizer-model-type "$vocabulary" --save "$RUN")
    export PRECISION=
fi
ascend-run "$@" --native glm "$(dirname "$0")/10B.sh" "${MORE[@]}"
