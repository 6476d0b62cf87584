#!/bin/bash
MODEL=Qwen/Qwen2.5-7B-Instruct
NUM_GPUS=${NUM_GPUS:-8}
deepspeed --num_gpus $NUM_GPUS --master_port=29500 train.py \
    --deepspeed zero3.json \
    --model_name_or_path "$MODEL" \
    --model_max_length 4096 \
    --per_device_train_batch_size 2 \
    --gradient_accumulation_steps 8 \
    --gradient_checkpointing True \
    --bf16 True \
    --attn_implementation flash_attention_2 \
    --learning_rate 1e-5 --output_dir out --logging_steps 1
