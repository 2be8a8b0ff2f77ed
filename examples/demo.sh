#!/usr/bin/env bash
# Train the bundled sample and evaluate it three times: as it is, with a higher exit_thres, and with
# a confidence window of two layers (`make demo`).
set -euo pipefail
cd "$(dirname "$0")/.."
# The sample's model is tiny: more threads only wait for each other.
export OMP_NUM_THREADS=1 OUT_DIR=out/demo
mkdir -p "$OUT_DIR"
EDITS="" bash ./glue_run.sh 1 | tee "$OUT_DIR/cautious.txt"
EDITS=exit_thres=0.3 bash ./glue_run.sh 0 | tee "$OUT_DIR/eager.txt"
RUN=("${PYTHON:-python}" ./run_glue.py --model_type elbert --task_name RTE --do_lower_case
  --data_dir configs/sample/RTE --model_name_or_path configs/sample --output_dir "$OUT_DIR/RTE")
"${RUN[@]}" --do_predict
"${RUN[@]}" --do_eval --per_gpu_eval_batch_size 1 --set exit_thres=0.1 cnt_thres=2 margin=0.3 |
  tee "$OUT_DIR/window.txt"

echo
for name in cautious eager window; do
  grep -hE "^Computation cost|^acc = |^rule: " "$OUT_DIR/$name.txt" | sed 's/ ([^)]*)//g'
done
printf '\nsteps of inference, and the mean exit layer of such test texts:\n'
paste configs/sample/RTE/test.tsv "$OUT_DIR/RTE/predictions.tsv" | awk -F'\t' '
  NR > 1 { sum[$4] += $9; count[$4]++ }
  END { for (steps = 1; steps in sum; steps++) printf "%d  %.1f\n", steps, sum[steps] / count[steps] }'
cat <<'TEXT'

Figure: out/demo/RTE/exits.png. Report: out/demo/RTE/eval_results.json.
Next, real data:   .venv/bin/python download_glue_data.py --data_dir glue_data --tasks RTE
Next, real ALBERT: GLUE_DIR=glue_data W_DIR=albert/albert-base-v2 MODEL=albert_base bash ./glue_run.sh 1
TEXT
