#!/usr/bin/env bash
SIZE=(
    --num-layers 12 --hidden-size 768 --num-attention-heads 12 --seq-length 1024
    --micro-batch-size 8 --global-batch-size 8
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
    --num-gpus-per-node 1
)
source "$(dirname "$0")/pretrain.sh"
