#!/bin/sh
# Time exits on this machine's GPU, in about five minutes: Hugging Face's models, eager and compiled,
# beside ours with CUDA graphs, at all, half and a quarter of the layers. Prints a table as that of
# docs/speed.md, and writes every round to gpu.csv. Without a GPU it says so, and ends.
#
#     benchmarks/gpu.sh                 as many of the cases as begin within three and a half minutes
#     benchmarks/gpu.sh --minutes 20    all of them
#
# Whether the answers are right there: python3 -m pytest tests/modeling -k gpu
set -e
cd "$(dirname "$0")/.."
exec "${PYTHON:-python3}" benchmarks/speed.py --minutes 3.5 --csv gpu.csv \
  --shapes 1x32 1x128 8x64 32x128 128x128 \
  --models ALBERT-base MiniLM ALBERT-large ALBERT-xlarge BERT-large "$@"
