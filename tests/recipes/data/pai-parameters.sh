#!/bin/bash
# Everything in parameters, the command built as text and evaluated: how Pai scripts are written.
WHERE=$1
SIZE=$2
BATCH=$3
PP=$4
AC=$5
if [ $WHERE = single ]; then
    NNODES=1
    GPUS=8
elif [ $WHERE = many ]; then
    NNODES=${WORLD_SIZE}
    GPUS=${GPU_COUNT}
fi

if [ $SIZE = 7B ]; then
LAYERS=28
shape=" \
    --hidden-size 3584 --num-attention-heads 28 --ffn-hidden-size 18944 \
    --group-query-attention --num-query-groups 4"
elif [ $SIZE = 14B ]; then
LAYERS=48
shape=" \
    --hidden-size 5120 --num-attention-heads 40 --ffn-hidden-size 13824 \
    --group-query-attention --num-query-groups 8"
fi

VIRTUAL=$(( $LAYERS / $PP / 2 ))
if [ -z ${VIRTUAL} ]; then
    chunks=""
else
    chunks=" --num-layers-per-virtual-pipeline-stage ${VIRTUAL}"
fi
TP_OVERLAP=$(( ($PP > 99) ? 1 : 0 ))
if [ $AC = full ]; then
    left=$(( ($LAYERS / $PP) % 2 ))
    if [ $left != 0 ]; then
        echo "layers per stage must be even"
        exit -1
    fi
    recompute=" --recompute-granularity full --recompute-method uniform --recompute-num-layers 2"
elif [ $AC = sel ]; then
    recompute=" \
        --recompute-activations"
fi
options=" \
    --num-layers ${LAYERS} ${shape} --swiglu --add-qkv-bias --untie-embeddings-and-output-weights \
    --micro-batch-size ${BATCH} --global-batch-size 256 --seq-length 4096 --bf16 \
    --tensor-model-parallel-size 1 --pipeline-model-parallel-size ${PP} \
    --extra-vocab-size 421 --patch-tokenizer-type Qwen2Tokenizer --use-distributed-optimizer"
run_cmd="torchrun --nproc_per_node $GPUS --nnodes $NNODES pretrain_qwen.py
 ${options} ${recompute} ${chunks} 2>&1 | tee log-$RANK.txt"
echo ${run_cmd}
eval ${run_cmd}
