"""The example scripts: what they say they do, run here."""

import os
import sys
from functools import partial

import pytest
import yaml

from glue.splits import read_examples
from glue.tasks import TASKS
from tests.commands import ROOT, main_of, ran
from tests.conftest import write

EXAMPLES = ROOT / "examples"


bash = partial(ran, "bash", PYTHON=sys.executable, OMP_NUM_THREADS=1)


def test_the_arrays_cover_the_grid_and_nothing_else():
    with pytest.raises(AssertionError, match="run 45: there are 9 tasks × 5 seeds"):
        bash(EXAMPLES / "study.slurm", SLURM_ARRAY_TASK_ID=45)
    job = yaml.safe_load((EXAMPLES / "study.k8s.yaml").read_text())
    head = (EXAMPLES / "study.slurm").read_text()
    assert "--array=0-44" in head
    assert job["spec"]["completions"] == 45
    container = job["spec"]["template"]["spec"]["containers"][0]
    assert "examples/study.slurm" in container["args"][0]


@pytest.mark.slow
def test_runs_of_the_array_work_one_by_one_and_again(tmp_path):
    """Two seeds of the bundled sample, cut short; a finished run is not trained again."""
    few = "--from_scratch --max_steps 3 --max_train_samples 40 --max_eval_samples 60"
    variables = {
        "TASKS": "CoLA RTE",
        "SEEDS": "1 2",
        "GLUE_DIR": ROOT / "configs/sample",
        "W_DIR": ROOT / "configs/sample",
        "OUT_DIR": tmp_path,
        "TRAIN_FLAGS": few,
        "EVAL_FLAGS": "--max_eval_samples 60",
    }
    for index in (2, 3):
        printed = bash(EXAMPLES / "study.slurm", SLURM_ARRAY_TASK_ID=index, **variables)
        assert f"RTE, seed {index - 1}" in printed
        assert "Computation cost" in printed
        assert (tmp_path / f"RTE/seed-{index - 1}/sweep/sweep.csv").exists()
    again = bash(EXAMPLES / "study.slurm", SLURM_ARRAY_TASK_ID=3, **variables)
    assert "is finished: nothing to resume" in again


def test_sick_becomes_mnli(script, tmp_path):
    head = "pair_ID\tsentence_A\tsentence_B\trelatedness_score\tentailment_judgment\n"
    parts = {"train": {1: "NEUTRAL", 5: "ENTAILMENT"}, "trial": {4: "CONTRADICTION"}}
    files = []
    for part, pairs in {**parts, "test": {6: "NEUTRAL"}}.items():
        lines = [f"{i}\tA man eats {i}\tNobody eats\t3.5\t{x}\n" for i, x in pairs.items()]
        files.append(write(tmp_path / f"SICK_{part}.txt", head + "".join(lines)))
    done = script(main_of("sick_as_mnli.py"), "--sick", *files, "--output", tmp_path / "out").done()
    assert f"{tmp_path / 'out/train.tsv'}: 2 pairs" in done.out
    # As in the files of the same name that were made by hand.
    assert (tmp_path / "out/dev_matched.tsv").read_text() == (
        "index\tpromptID\tpairID\tgenre\tsentence1_binary_parse\tsentence2_binary_parse\t"
        "sentence1_parse\tsentence2_parse\tsentence1\tsentence2\tlabel1\tlabel2\tlabel3\tlabel4\t"
        "label5\tgold_label\n"
        "0\t4\t4s\tsick\t-\t-\t-\t-\tA man eats 4\tNobody eats\t"
        + "\t".join(6 * ["contradiction"])
        + "\n"
    )
    for split, part, labels in (("train", "mnli", [2, 1]), ("dev", "mnli-mm", [2])):
        examples = read_examples(TASKS[part], tmp_path / "out", split)
        assert [example.label for example in examples] == labels
        assert examples[0].text_b == "Nobody eats"


@pytest.mark.slow
def test_two_machines_pre_train_together(tmp_path, corpus, spiece):
    """With stand-ins for SLURM's commands, by which both machines are this one."""
    for name, body in (("scontrol", "echo localhost"), ("srun", '"$@" & "$@"; wait $!')):
        write(tmp_path / name, f"#!/bin/bash\n{body}\n").chmod(0o755)
    flags = f"--config_name {corpus}/config.json --tokenizer_name {spiece.parent} --max_steps 3 "
    flags += "--max_seq_length 16 --long_fraction 0 --per_gpu_train_batch_size 4 --no_cuda "
    flags += "--gradient_accumulation_steps 1 --logging_steps 1"
    variables = {
        "SLURM_JOB_NODELIST": "node[1-2]",
        "SLURM_NNODES": 2,
        "SLURM_JOB_ID": 1,
        "GPUS": 1,
        "TEXT": corpus / "train.txt",
        "OUT_DIR": tmp_path / "out",
        "FLAGS": flags,
        "PATH": f"{tmp_path}:{os.environ['PATH']}",
    }
    printed = bash(EXAMPLES / "two_nodes.slurm", **variables)
    assert "batch_size=8" in printed  # of two processes with 4 each
    assert (tmp_path / "out/model.safetensors").exists()


def test_the_servers_manifest_asks_for_what_the_server_has():
    """Its probes are the server's addresses, its flags the server's, and all names agree."""
    manifest = yaml.safe_load_all((EXAMPLES / "serve.k8s.yaml").read_text())
    deployment, service, scaler = manifest
    pod = deployment["spec"]["template"]
    (container,) = pod["spec"]["containers"]
    script = (EXAMPLES / "serve.py").read_text()
    routes = (EXAMPLES.parent / "serving" / "app.py").read_text()
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert f'("{container[probe]["httpGet"]["path"]}", server.' in routes
    for flag in container["args"][::2]:
        assert f'"{flag}"' in script
    port = str(container["ports"][0]["containerPort"])
    annotations = pod["metadata"]["annotations"]
    assert annotations["prometheus.io/port"] == container["args"][-1] == port
    assert f'("{annotations["prometheus.io/path"]}", server.' in routes
    labels = pod["metadata"]["labels"]
    assert deployment["spec"]["selector"]["matchLabels"] == service["spec"]["selector"] == labels
    assert scaler["spec"]["scaleTargetRef"]["name"] == deployment["metadata"]["name"]
    threads = {variable["name"]: variable["value"] for variable in container["env"]}
    assert int(threads["OMP_NUM_THREADS"]) == container["resources"]["limits"]["cpu"]
