#!/usr/bin/env bash
echo "local.sh runs on $(hostname), with GPU ${CUDA_VISIBLE_DEVICES:-none}"
echo "and whatever it writes comes back" > written.txt
