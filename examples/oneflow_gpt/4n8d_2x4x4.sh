#!/usr/bin/env bash
SIZE=(
    --num-layers 24 --hidden-size 2304 --num-attention-heads 24 --seq-length 2048
    --micro-batch-size 8 --global-batch-size 512
    --tensor-model-parallel-size 4 --pipeline-model-parallel-size 4
    --num-gpus-per-node 8 --num-nodes 4 --node-ips "${NODE_IPS:-10.11.0.2,10.11.0.3,10.11.0.4,10.11.0.5}"
)
source "$(dirname "$0")/pretrain.sh"
