#!/usr/bin/env bash
SIZE=(
    --num-layers 16 --hidden-size 1536 --num-attention-heads 16 --seq-length 2048
    --micro-batch-size 8 --global-batch-size 16
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 1
    --num-gpus-per-node 8
)
source "$(dirname "$0")/pretrain.sh"
