# GLM-10B, as GLM's scripts source it: blank infilling, 48 layers, hidden size 4096, 64 heads.
# In GLM's checkout:            ascend-run bash scripts/ds_pretrain_nvidia.sh 10B.sh
# In the native trainer:        ascend-run --nproc 8 --native glm examples/glm_10b/10B.sh
NUM_WORKERS=1
NUM_GPUS_PER_WORKER=8
MP_SIZE=${MP_SIZE:-1}

gpt_options=" \
    --block-lm --task-mask --bert-prob 0.5 --gap-sentence-prob 0.3 --avg-block-length 3 --gpt-min-ratio 0.25 \
    --block-mask-prob 0.1 --short-seq-prob 0.02 --experiment-name blocklm-10b --model-parallel-size ${MP_SIZE} \
    --num-layers 48 --hidden-size 4096 --num-attention-heads 64 --seq-length 512 --max-position-embeddings 1024 \
    --batch-size 8 --train-iters 250000 --lr 1e-4 --lr-decay-style cosine --lr-decay-ratio 0.1 \
    --lr-decay-iters 175000 --warmup 0.04 --weight-decay 0.1 --clip-grad 1.0 --checkpoint-activations ${PRECISION---fp16} \
    --tokenizer-type GPT2BPETokenizer --train-data ${TRAIN_DATA:-pile/00.jsonl} --split 949,50,1 \
    --save checkpoints/glm --log-interval 50 --eval-interval 1000 --save-interval 2000 \
    --distributed-backend nccl \
"
