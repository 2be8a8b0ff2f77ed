#!/usr/bin/env bash
# The loop of the paper: train, edit a threshold, evaluate.
#
#     bash ./glue_run.sh TRAIN GPU        TRAIN=1 trains first; GPU is for CUDA_VISIBLE_DEVICES
#
# From the environment, with the bundled sample as default:
#   MODEL TASK_NAME GLUE_DIR W_DIR OUT_DIR   as published
#   MODEL_TYPE        who stops: elbert (the default), ponder_albert or albert_act
#   TEST_MODE=one     set the keys of EDITS, evaluate once. EDITS is a list, by default the published
#                     "exit_thres=0.4 cnt_thres=8", with a window of all layers where there are
#                     fewer than 8, or PALBERT's exit for ponder_albert;
#                     KEY=exit_thres V=0.3 is short for EDITS=exit_thres=0.3. Without EDITS and V, an
#                     exit_config.json that sweep_exits.py --pick wrote is kept
#   TEST_MODE=all     results at every value of KEY: exit_thres 0.9 ... 0.1, cnt_thres 2 ... 12
#   TRAIN_FLAGS       more flags for the training, e.g. "--bf16"; they win over the ones below
#   GPUS              processes that share a training's batches of 32, default 1
#   PYTHON            interpreter, default .venv/bin/python where it exists
set -euo pipefail
cd "$(dirname "$0")"

TRAIN=${1:-1}
if [ -n "${2:-}" ]; then
  export CUDA_VISIBLE_DEVICES=$2
fi
if [ -z "${PYTHON:-}" ]; then
  PYTHON=python
  if [ -x .venv/bin/python ]; then PYTHON=.venv/bin/python; fi
fi
MODEL=${MODEL:-sample}
TEST_MODE=${TEST_MODE:-one}
TASK_NAME=${TASK_NAME:-RTE}
GLUE_DIR=${GLUE_DIR:-configs/sample}
W_DIR=${W_DIR:-configs/sample}
OUT_DIR=${OUT_DIR:-out/$MODEL}
KEY=${KEY:-exit_thres}
MODEL_TYPE=${MODEL_TYPE:-elbert}
ASKED=${EDITS+yes}${V:-} # is there a setting that the user asks for?
case "$MODEL_TYPE" in
  elbert | albert | bert | roberta | electra)
    layers=$("$PYTHON" -c "import json, sys; print(json.load(open(sys.argv[1]))['num_hidden_layers'])" \
      "$W_DIR/config.json" 2>/dev/null || echo 8) # a hub's name has no file
    EDITS=${EDITS-exit_thres=0.4 cnt_thres=$((layers < 8 ? layers : 8))}
    ;;
  ponder_albert) EDITS=${EDITS-exit_criteria=threshold exit_thres=0.5} ;;
  *) EDITS=${EDITS-} ;;  # a token's halting is learned: nothing to edit
esac
if [ -n "${V:-}" ]; then EDITS=$KEY=$V; fi
if [ "$W_DIR" = configs/sample ]; then
  # The recipe of the sample, whose model is tiny.
  TRAIN_FLAGS=${TRAIN_FLAGS:-"--learning_rate 3e-4 --warmup_steps 60 --num_train_epochs 8"}
fi

edit() {  # KEY=VALUE
  "$PYTHON" ./change_config.py --key "${1%%=*}" --value "${1#*=}" \
    --task "$TASK_NAME" --model "$MODEL" --out_dir "$OUT_DIR"
}

evaluate() {  # OUT_MODE [--set KEY=VALUE]
  "$PYTHON" ./run_glue.py \
    --out_mode "$1" \
    --max_seq_length 128 \
    --per_gpu_eval_batch_size 1 \
    --model_type "$MODEL_TYPE" \
    --task_name "$TASK_NAME" \
    --do_eval \
    --do_lower_case \
    --data_dir "$GLUE_DIR/$TASK_NAME" \
    --model_name_or_path "$W_DIR" \
    --output_dir "$OUT_DIR/$TASK_NAME" "${@:2}"
}

echo "Task: $TASK_NAME"
if [ "$TRAIN" = 1 ]; then
  echo "Train!"
  LAUNCH=("$PYTHON")
  if ((${GPUS:-1} > 1)); then
    LAUNCH=("$PYTHON" -m torch.distributed.run --standalone --nproc_per_node "$GPUS")
  fi
  # shellcheck disable=SC2086  # TRAIN_FLAGS is a list of flags
  "${LAUNCH[@]}" ./run_glue.py \
    --per_gpu_train_batch_size $((32 / ${GPUS:-1})) \
    --learning_rate 3e-5 \
    --num_train_epochs 3.0 \
    --save_steps 5000 \
    --max_seq_length 128 \
    --per_gpu_eval_batch_size 1 \
    --overwrite_output_dir \
    --model_type "$MODEL_TYPE" \
    --task_name "$TASK_NAME" \
    --do_lower_case \
    --data_dir "$GLUE_DIR/$TASK_NAME" \
    --model_name_or_path "$W_DIR" \
    --output_dir "$OUT_DIR/$TASK_NAME" \
    --config_name "$W_DIR" \
    --do_train ${TRAIN_FLAGS:-}
fi

echo "Eval!"
case "$TEST_MODE" in
  one)
    picked=$OUT_DIR/$TASK_NAME/exit_config.json # names its data where --pick wrote it
    if [ -z "$ASKED" ] && grep -qs '"provenance"' "$picked"; then
      echo "$picked: kept as sweep_exits.py --pick chose it; EDITS or V=... set other values"
    else
      for pair in $EDITS; do edit "$pair"; done
    fi
    evaluate one
    ;;
  all)
    values="0.9 0.8 0.7 0.6 0.5 0.4 0.3 0.2 0.1"
    if [ "$KEY" = cnt_thres ]; then values=$(seq 2 $((layers < 12 ? layers : 12))); fi
    mode=one
    for value in $values; do
      evaluate $mode --set "$KEY=$value"
      mode=all
    done
    cat "$OUT_DIR/$TASK_NAME/eval_results.txt"
    ;;
  *)
    echo "error: TEST_MODE=$TEST_MODE: allowed is one or all" >&2
    exit 2
    ;;
esac
