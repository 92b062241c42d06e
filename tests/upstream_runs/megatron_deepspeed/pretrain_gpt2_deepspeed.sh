#!/bin/bash
# The second script of docs/upstreams/megatron-deepspeed.md: the deepspeed launcher, a small model, a few steps.
#   bash pretrain_gpt2_deepspeed.sh MEGATRON DATA_PATH VOCAB_FILE MERGE_FILE N_GPUS PORT CONFIG_JSON [arguments ...]
set -e
MEGATRON=$1 DATA_PATH=$2 VOCAB_FILE=$3 MERGE_FILE=$4 N_GPUS=$5 MASTER_PORT=$6 CONFIG_JSON=$7
shift 7
CHECKPOINT_PATH=checkpoints/gpt2

GPT_ARGS=" \
    --num-layers 2 \
    --hidden-size 64 \
    --num-attention-heads 4 \
    --seq-length 32 \
    --max-position-embeddings 32 \
    --micro-batch-size 2 \
    --global-batch-size 8 \
    --lr-decay-iters 320 \
    --lr 0.0015 \
    --min-lr 1.0e-5 \
    --lr-decay-style cosine \
    --train-iters 8 \
    --vocab-file $VOCAB_FILE \
    --merge-file $MERGE_FILE \
    --data-impl mmap \
    --split 949,50,1 \
    --distributed-backend nccl \
    --weight-decay 1e-2 \
    --clip-grad 1.0 \
    --lr-warmup-fraction .01 \
    "

OUTPUT_ARGS=" \
    --log-interval 1 \
    --save-interval 500 \
    --eval-interval 100 \
    --eval-iters 2 \
    --checkpoint-activations \
    "

DATA_ARGS=" \
    --save $CHECKPOINT_PATH \
    --load $CHECKPOINT_PATH \
    --data-path $DATA_PATH \
    "

ALL_ARGS="$GPT_ARGS $OUTPUT_ARGS $DATA_ARGS --deepspeed_config $CONFIG_JSON"

LAUNCHER="deepspeed --num_gpus $N_GPUS --master_port $MASTER_PORT"

CMD="$LAUNCHER $MEGATRON/pretrain_gpt.py $ALL_ARGS"

echo $CMD

$CMD "$@"
