#!/usr/bin/env bash
# Settings in arrays, options over defaults: how newer Megatron examples are written.
set -euo pipefail

TP=2
RECOMPUTE=none
while [[ $# -gt 0 ]]; do
    case $1 in
        --tp) TP=$2; shift 2 ;;
        --recompute) RECOMPUTE=$2; shift 2 ;;
        *) echo "unknown option $1" >&2; exit 1 ;;
    esac
done
NODES=${NODES:-2}
GPUS=${GPUS:-8}
PRECISION=${PRECISION:-fp8}

export PYTORCH_CUDA_ALLOC_CONF="expandable_segments:True"
if [ ! -d "$DATA" ]; then
    echo "no data in $DATA"
    exit 1
fi

LAUNCH=(--nproc_per_node "$GPUS" --nnodes "$NODES" --rdzv_backend=c10d)
MODEL=(
    --num-layers 32 --hidden-size 4096 --ffn-hidden-size 14336
    --num-attention-heads 32 --group-query-attention --num-query-groups 8
    --swiglu --normalization RMSNorm --disable-bias-linear
    --untie-embeddings-and-output-weights
    --max-position-embeddings 8192 --vocab-size 128256
)
RUN=(
    --micro-batch-size 1 --global-batch-size $((NODES * GPUS * 8)) --seq-length 8192
    --lr 3e-4 --weight-decay 0.1
    --use-distributed-optimizer --overlap-grad-reduce --overlap-param-gather
    --cross-entropy-loss-fusion
)
case "$PRECISION" in
    fp8) RUN+=(--bf16 --fp8-format hybrid) ;;
    *) RUN+=("--$PRECISION") ;;
esac
parallel() {
    local tp=$1 pp=$2
    PARALLEL=(--tensor-model-parallel-size $tp --pipeline-model-parallel-size $pp)
    if (( tp > 1 )); then
        PARALLEL+=(--sequence-parallel --tp-comm-overlap)
    fi
}
parallel $TP 4
[[ $RECOMPUTE == full ]] && RUN+=(--recompute-granularity full --recompute-method block --recompute-num-layers 2)

torchrun "${LAUNCH[@]}" pretrain_gpt.py "${MODEL[@]}" "${RUN[@]}" "${PARALLEL[@]}" \
    --num-layers-per-virtual-pipeline-stage 4 2>&1 | tee "logs/$(date +%s).log"
