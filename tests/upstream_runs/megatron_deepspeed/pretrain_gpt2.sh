#!/bin/bash
# The first script of docs/upstreams/megatron-deepspeed.md: torch.distributed.launch, a small model, a few steps.
#   bash pretrain_gpt2.sh MEGATRON DATA_PATH VOCAB_FILE MERGE_FILE N_GPUS PORT [arguments of pretrain_gpt.py ...]
set -e
MEGATRON=$1 DATA_PATH=$2 VOCAB_FILE=$3 MERGE_FILE=$4 GPUS_PER_NODE=$5 MASTER_PORT=$6
shift 6

MASTER_ADDR=localhost
NNODES=1
NODE_RANK=0
CHECKPOINT_PATH=checkpoints/gpt2

DISTRIBUTED_ARGS="--nproc_per_node $GPUS_PER_NODE --nnodes $NNODES --node_rank $NODE_RANK --master_addr $MASTER_ADDR --master_port $MASTER_PORT"

python -m torch.distributed.launch $DISTRIBUTED_ARGS \
       $MEGATRON/pretrain_gpt.py \
       --num-layers 2 \
       --hidden-size 64 \
       --num-attention-heads 4 \
       --micro-batch-size 2 \
       --global-batch-size 8 \
       --seq-length 32 \
       --max-position-embeddings 32 \
       --train-iters 8 \
       --lr-decay-iters 320 \
       --save $CHECKPOINT_PATH \
       --load $CHECKPOINT_PATH \
       --data-path $DATA_PATH \
       --vocab-file $VOCAB_FILE \
       --merge-file $MERGE_FILE \
       --data-impl mmap \
       --split 949,50,1 \
       --distributed-backend nccl \
       --lr 0.0015 \
       --lr-decay-style cosine \
       --min-lr 1.0e-5 \
       --weight-decay 1e-2 \
       --clip-grad 1.0 \
       --lr-warmup-fraction .01 \
       --checkpoint-activations \
       --log-interval 1 \
       --save-interval 500 \
       --eval-interval 100 \
       --eval-iters 2 \
       "$@"
