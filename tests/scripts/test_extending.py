"""docs/extending.md, followed to the letter in a copy of the project."""

import json
import re
import shlex
import shutil
import sys
from importlib.util import find_spec
from pathlib import Path

import pytest

from tests.commands import ROOT, ran
from tests.scripts.conftest import rows_of

PAGE = (ROOT / "docs/extending.md").read_text(encoding="utf-8")
# One worker makes the copy and runs its commands, for all tests here.
pytestmark = pytest.mark.xdist_group("extended")
LEFT = ("*.pyc", "__pycache__", ".git", ".venv", "out", "node_modules", "glue_data")


@pytest.fixture(scope="module")
def extended(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the page's rule, keys and mode added, and its commands run, in order."""
    copy = tmp_path_factory.mktemp("extended") / "project"
    shutil.copytree(ROOT, copy, ignore=shutil.ignore_patterns(*LEFT))
    blocks = re.findall(r"^```(\w*)\n(.*?)^```$", PAGE, flags=re.DOTALL | re.MULTILINE)
    for kind, block in blocks:
        if kind:
            edit(copy, kind, *block.split("\n", 1))
            continue
        for command in block.replace("\\\n", " ").splitlines():
            ran(sys.executable, *shlex.split(command)[1:], cwd=copy)
    return copy


def edit(copy: Path, kind: str, head: str, rest: str) -> None:
    """Append Python to the file that the block's first line names, or to a table in it; or change
    the file's lines."""
    name, _, where = head.removeprefix("# ").partition(", in ")
    path = copy / name
    text = path.read_text(encoding="utf-8") if path.exists() else ""
    if kind == "diff":
        old, new = ("".join(x[1:] for x in rest.splitlines(True) if x[0] in side) for side in PARTS)
        assert text.count(old) == 1
        text = text.replace(old, new)
    elif where:
        text = re.sub(rf"(^{where}\b.* = [({{])\n?", rf"\1\n{rest}", text, flags=re.MULTILINE)
        assert rest in text
    else:
        text = f"{text}\n\n{rest}" if text else rest
    path.write_text(text, encoding="utf-8")


PARTS = ("- ", "+ ")  # of a diff: the lines before, and after


def python(copy: Path, code: str) -> list[str]:
    """Run code in the extended project; return the lines that it prints."""
    return ran(sys.executable, "-c", code, cwd=copy).splitlines()


@pytest.mark.slow
def test_a_new_rule_trains_evaluates_and_is_swept(extended):
    report = json.loads((extended / "out/gap/eval_results.json").read_text())
    assert (report["rule"]["thres_name"], report["rule"]["least_lead"]) == ("gap", 0.1)
    rows = rows_of(extended / "out/gap/sweep/sweep.csv")
    assert {row["rule"] for row in rows} == {"gap", "truncation"}
    swept = next(row for row in rows if row["least_lead"] and float(row["least_lead"]) == 0.1)
    assert float(swept["compute_ratio"]) == pytest.approx(report["computation_cost"])
    assert len({row["compute_ratio"] for row in rows}) > 3
    assert (extended / "out/gap/sweep/explorer.html").exists()


@pytest.mark.slow
def test_keys_that_all_rules_read_are_honoured_everywhere(extended):
    """A temperature and a least layer: at inference, alone and in slots, in a sweep, in a file."""
    out, has_onnx = extended / "out/hot", find_spec("onnxscript")
    shutil.copytree(extended / "out/gap", out)
    if has_onnx:
        exported = ["--model_dir", out, "--output", out / "a.onnx"]
        ran(sys.executable, "export_onnx.py", *exported, cwd=extended)
    swept = rows_of(extended / "out/temperatures/sweep.csv")
    window = {"exit_thres": 0.3, "cnt_thres": 2, "margin": 0.0, "range_tmp": 0.1}
    for rule, more, own_keys in (
        ("gap", "--per_gpu_eval_batch_size 1", {"least_lead": 0.05}),
        ("bias_3", "--per_gpu_eval_batch_size 16", window),
        *([("gap", f"--onnx {out}/a.onnx", {"least_lead": 0.05})] if has_onnx else []),
    ):
        keys = {**own_keys, "exit_temperature": 0.5, "min_layers": 3}
        words = [f"thres_name={rule}", *(f"{key}={value}" for key, value in keys.items())]
        command = ["run_glue.py", "--do_eval", "--output_dir", out, *more.split()]
        printed = ran(sys.executable, *command, "--set", *words, cwd=extended)
        assert "exit_temperature = 0.5 (--set)" in printed
        assert "has no effect" not in printed
        wanted = {"rule": rule, **{key: str(value) for key, value in keys.items()}}
        (row,) = (row for row in swept if wanted.items() <= row.items())
        exits = json.loads((out / "eval_results.json").read_text())["exits_per_layer"]
        assert exits == [int(row[f"exits_{n}"]) for n in range(1, 13)]
        assert exits[:2] == [0, 0]  # nobody before min_layers
        others = {"min_layers": "1"}
        if rule == "gap":  # of bias_3 the window decides here, which no temperature changes
            others["exit_temperature"] = "4.0"
        for key, other in others.items():
            changed = wanted | {key: other}
            other_row = next(row for row in swept if changed.items() <= row.items())
            assert other_row["compute_ratio"] != row["compute_ratio"]


@pytest.mark.slow
def test_a_new_mode_trains_evaluates_and_is_swept(extended):
    out = extended / "out/lte"
    assert json.loads((out / "config.json").read_text())["certainty_thres"] == 0.52  # as edited
    report = json.loads((out / "eval_results.json").read_text())
    rows = rows_of(out / "sweep/sweep.csv")
    assert {row["rule"] for row in rows} == {"certainty", "truncation"}
    swept = next(row for row in rows if row["certainty_thres"] == "0.5")  # as evaluated
    exits = [int(swept[f"exits_{n}"]) for n in range(1, 13)]
    assert exits == report["exits_per_layer"]
    assert len({row["compute_ratio"] for row in rows if row["rule"] == "certainty"}) > 2


ENCODER = """
import torch, transformers, elbert
from evaluation.modes import MODES
from modeling.export.graph import to_onnx

torch.manual_seed(0)
config = transformers.Data2VecTextConfig(vocab_size=40, hidden_size=16, num_attention_heads=2,
    intermediate_size=32, num_hidden_layers=3, max_position_embeddings=22, num_labels=3,
    problem_type={kind!r})
twin = transformers.Data2VecTextForSequenceClassification(config).eval()
twin.save_pretrained("out/data2vec")
keys = dict(keep_head=True, use_out_pooler=False, num_exit_layers=0, pooler_input="mean",
    thres_name="entropy", exit_thres=0.0)
model, report = elbert.load_pretrained("out/data2vec", **keys)
assert model.config.encoder_config is None and not report.ignored
ids = torch.randint(5, 40, (4, 9))
ids[1, 6:] = 1
mask = (ids != 1).long()
with torch.inference_mode():
    expected = twin(ids, mask).logits
    for with_exits in (model.eval(), elbert.packed_copy(model)):
        torch.testing.assert_close(with_exits(ids, mask).logits, expected, atol=1e-5, rtol=0)
    batcher = elbert.DepthBatcher(model, slots=2)
    texts = [row[real.bool()].tolist() for row, real in zip(ids, mask)]
    batcher.submit((text, [0] * len(text)) for text in texts)
    slots = torch.stack([answer.logits for answer in sorted(batcher.answers())])
    torch.testing.assert_close(slots, expected, atol=1e-5, rtol=0)
labels = torch.ones(4, 3) if {kind!r} else torch.tensor([0, 1, 2, 0])
assert model.train()(ids, mask, labels=labels).loss.isfinite()
print(len(to_onnx(MODES["elbert"].export_loop(model), {{}}).graph) > 0)
"""


@pytest.mark.slow
@pytest.mark.parametrize("kind", [None, "multi_label_classification"])
def test_a_new_encoder_answers_as_transformers_does(extended, kind):
    """At full depth with its own head: plain, packed, in slots; it trains and is exported."""
    pytest.importorskip("onnxscript", reason="pip install -r requirements/onnx.txt")
    assert python(extended, ENCODER.format(kind=kind)) == ["True"]


USES = """
import sys, torch, elbert
from modeling.lte import LteAlbert, LteConfig, rightness
from modeling.rules import scan
from glue.tasks import Task

torch.manual_seed(0)
SIZES = dict(vocab_size=30, embedding_size=8, hidden_size=16, num_attention_heads=2,
    intermediate_size=32, num_hidden_layers=4, max_position_embeddings=20)
KINDS = {
    "classes": (dict(num_labels=3), torch.tensor([0, 2, 1, 1])),
    "labels": (dict(num_labels=3, problem_type="multi_label_classification"),
        torch.tensor([[1.0, 0, 1], [0, 0, 0], [1, 1, 1], [0, 1, 0]])),
    "values": (dict(num_labels=1), torch.tensor([0.5, 2.0, -1.0, 0.0])),
}
ids = torch.randint(5, 30, (4, 9))
for kind, (keys, labels) in KINDS.items():
    model = LteAlbert(LteConfig(**SIZES, **keys))
    model.train()
    out = model(ids, labels=labels)
    out.loss.backward()
    assert model.certainty.weight.grad.abs().sum() > 0, kind
    plain = super(LteAlbert, model).training_loss(
        {"all_logits": out.all_logits}, labels, None)
    assert out.loss > plain, kind  # the head's own loss
    model.eval()
    with torch.inference_mode():
        deep = model(ids, output_all_exits=True)
        recorded = model.record(model.embed(ids), None)
        middle = recorded["certainty"][:, :3].median().item()
        for thres in (0.0, middle, 1.0):
            model.config.certainty_thres = thres
            early = model(ids)  # a batch
            alone = [model(row[None]) for row in ids]
            deep = model(ids, output_all_exits=True)
            batcher = elbert.DepthBatcher(model, slots=3)
            batcher.submit((row.tolist(), [0] * 9) for row in ids)
            slots = sorted(batcher.answers(), key=lambda answer: answer.row)
            expected = scan(model.config.exit_rule(), recorded).tolist()
            by_hand = [next((n for n, c in enumerate(row[:3].tolist(), 1) if c > thres), 4)
                for row in recorded["certainty"]]
            assert expected == by_hand
            for exits in (early.exit_layer.tolist(), [x.exit_layer.item() for x in alone],
                    deep.exit_layer.tolist(), [x.exit_layer for x in slots]):
                assert exits == expected, (kind, thres, exits, expected)
            torch.testing.assert_close(torch.stack([x.logits for x in slots]), early.logits)
            torch.testing.assert_close(deep.logits, early.logits)
    packed = elbert.packed_copy(model)
    with torch.inference_mode():
        assert packed(ids).exit_layer.tolist() == model(ids).exit_layer.tolist()
    print(kind, "holds")
"""


@pytest.mark.slow
def test_the_new_mode_holds_for_classes_labels_and_values(extended):
    """Its rule by hand, in batches, alone, in slots and with all exits; its loss in training."""
    assert python(extended, USES) == ["classes holds", "labels holds", "values holds"]


@pytest.mark.slow
def test_the_new_mode_is_known_to_classify_and_to_pipelines(extended):
    asked = """
from transformers import pipeline
import elbert
texts = ["a man sleeps", "a dog runs in the park"]
answers = elbert.classify("out/lte", texts)
pipe = pipeline("text-classification", "out/lte", pipeline_class=elbert.EarlyExitPipeline)
print([x["exit_layer"] for x in answers] == [x["exit_layer"] for x in pipe(texts)])
"""
    assert python(extended, asked) == ["True"]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gap", "lte"])
def test_they_are_exported(extended, name):
    """The file answers and exits as the model does."""
    pytest.importorskip("onnxscript", reason="pip install -r requirements/onnx.txt")
    out = f"out/{name}-file"
    shutil.copytree(extended / "out" / name, extended / out)
    reports = []
    for words in (
        ["export_onnx.py", "--model_dir", out, "--output", f"{out}/model.onnx"],
        ["run_glue.py", "--do_eval", "--output_dir", out],
        ["run_glue.py", "--do_eval", "--output_dir", out, "--onnx", f"{out}/model.onnx"],
    ):
        ran(sys.executable, *words, cwd=extended)
        if words[0] == "run_glue.py":
            reports.append(json.loads((extended / out / "eval_results.json").read_text()))
    model, file = reports
    assert file["exits_per_layer"] == model["exits_per_layer"]
    assert file["metrics"] == model["metrics"]


# What reads the tables of rules, keys and modes that the page adds to.
QUICK_TESTS = (
    "elbert",
    "evaluation",
    "exit_lab",
    "modeling/exits",
    "modeling/test_configuration.py",
    "modeling/test_depth_batching.py",
    "modeling/test_exit_settings.py",
    "modeling/test_modes.py",
    "test_layers.py",
    "scripts/test_change_config.py",
    "scripts/test_sweep_exits.py",
)


@pytest.mark.slow
def test_what_the_page_adds_fails_no_test_of_what_reads_its_tables(extended):
    """The quick tests of rules, keys, modes and a sweep, in the new project."""
    places = [f"tests/{name}" for name in QUICK_TESTS]
    marks = "not slow and not realdata and not tf"
    command = [sys.executable, "-m", "pytest", "-q", "-n", "2", "-m", marks, *places]
    ran(*command, cwd=extended, OMP_NUM_THREADS="1")
