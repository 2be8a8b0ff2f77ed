#!/usr/bin/env bash
# Train the bundled sample, edit a threshold, evaluate at batch size 1. Called by `make demo`.
set -euo pipefail
cd "$(dirname "$0")/.."
# The sample's model is tiny: more threads only wait for each other.
export OMP_NUM_THREADS=1
OUT_DIR=out/demo bash ./glue_run.sh 1
cat <<'TEXT'

Figure: out/demo/RTE/exits.png. Report: out/demo/RTE/eval_results.json.
Next, real data:   .venv/bin/python download_glue_data.py --data_dir glue_data --tasks RTE
Next, real ALBERT: GLUE_DIR=glue_data W_DIR=albert/albert-base-v2 MODEL=albert_base bash ./glue_run.sh 1
TEXT
