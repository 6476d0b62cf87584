#!/bin/bash
# llama-13b on 4 machines of 16 BI-V150 devices, after the published figures of that run.
export PYTHONPATH=../../:$PYTHONPATH
export GLOG_v=0
MASTER=${MASTER:-10.0.0.1:8080}
python -u -m paddle.distributed.launch \
    --gpus "0,1,2,3,4,5,6,7,8,9,10,11,12,13,14,15" \
    --nnodes 4 \
    --master $MASTER \
    --log_dir log \
    run_pretrain.py ./pretrain.json
