#!/bin/bash
# Llama 3.1 8B from scratch with Megatron-LM on 4 nodes of 8 devices.
set -e

NNODES=4
GPUS_PER_NODE=8
TP=2
PP=2
export CUDA_DEVICE_MAX_CONNECTIONS=1
export PYTORCH_CUDA_ALLOC_CONF=expandable_segments:True

MODEL_ARGS="
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336 --num-attention-heads 32
    --group-query-attention --num-query-groups 8 --max-position-embeddings 131072
    --normalization RMSNorm --swiglu --disable-bias-linear --position-embedding-type rope
    --untie-embeddings-and-output-weights --vocab-size 128256 --make-vocab-size-divisible-by 128
    --attention-dropout 0.0 --hidden-dropout 0.0
"
PARALLEL_ARGS="
    --tensor-model-parallel-size $TP --pipeline-model-parallel-size $PP
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
"
if [ $TP -gt 1 ]; then
    PARALLEL_ARGS="$PARALLEL_ARGS --sequence-parallel --tp-comm-overlap"
fi

torchrun --nnodes $NNODES --nproc_per_node $GPUS_PER_NODE \
    --node_rank "${NODE_RANK:-0}" --master_addr "${MASTER_ADDR:-localhost}" --master_port 6000 \
    pretrain_gpt.py $MODEL_ARGS $PARALLEL_ARGS \
    --seq-length 8192 --micro-batch-size 1 --global-batch-size 1024 \
    --bf16 --transformer-impl transformer_engine \
    --tokenizer-type HuggingFaceTokenizer --tokenizer-model "${TOKENIZER:-data/tokenizer}" \
    --data-path "${DATA_PATH:-data/corpus_text_document}" --split 99,1,0 \
    --train-iters 12000 --lr 3e-4 --min-lr 3e-5 --lr-decay-style cosine --clip-grad 1.0
