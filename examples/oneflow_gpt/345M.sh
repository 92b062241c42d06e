#!/usr/bin/env bash
SIZE=(
    --num-layers 24 --hidden-size 1024 --num-attention-heads 16 --seq-length 1024
    --micro-batch-size 8 --global-batch-size 8
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size 1
    --num-gpus-per-node 1
)
source "$(dirname "$0")/pretrain.sh"
