#!/bin/bash
# Adapters on ERNIE 4.5 21B-A3B with ERNIEKit on one node of 8 devices.
model_path="ERNIE-4.5-21B-A3B-Paddle"

python -m paddle.distributed.launch \
    --log_dir logs \
    --gpus 0,1,2,3,4,5,6,7 \
    examples/post-training/sft/train.py \
    --model_name_or_path ${model_path} \
    --output_dir checkpoints \
    --train_dataset_path data/train.jsonl \
    --do_train \
    --max_steps 500 \
    --max_seq_len 8192 \
    --per_device_train_batch_size 1 \
    --gradient_accumulation_steps 8 \
    --tensor_parallel_degree 4 \
    --pipeline_parallel_degree 2 \
    --pipeline_parallel_config "disable_partial_send_recv disable_batch_p2p_comm" \
    --sharding stage1 \
    --sequence_parallel 1 \
    --moe_group mp \
    --bf16 \
    --fp16_opt_level O2 \
    --recompute 1 \
    --recompute_granularity full \
    --use_flash_attention 1 \
    --lora \
    --lora_rank 32
