"""What several test files share: a tiny ALBERT with its tokenizer, tiny GLUE files, and scripts
run in-process."""

import json
import os
import shutil
import subprocess
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from types import ModuleType, SimpleNamespace

os.environ.setdefault("HF_HUB_OFFLINE", "1")  # no test asks the hub
os.environ.setdefault("TOKENIZERS_PARALLELISM", "false")

import pytest
import sentencepiece
import torch
import transformers
from hypothesis import HealthCheck, settings
from matplotlib.figure import Figure

import run_glue
import run_pretraining
from elbert import ElbertConfig, ElbertForSequenceClassification, load_tokenizer
from evaluation.modes import MODES
from evaluation.predict import Run
from glue.features import Features
from glue.tasks import get_task
from runs.job import Job
from runs.trackers import NO_TENSORFLOW
from tests.commands import Outcome, exit_status, flags, pretraining_flags, train

# TensorBoard reads and writes as without TensorFlow, whichever test imports it first.
sys.modules.setdefault(NO_TENSORFLOW, ModuleType(NO_TENSORFLOW))

settings.register_profile(
    "tests",
    deadline=None,
    max_examples=60,
    suppress_health_check=[HealthCheck.too_slow, HealthCheck.function_scoped_fixture],
    derandomize=True,  # the same examples each time; thorough looks for new ones
)
settings.register_profile(
    "thorough", settings.get_profile("tests"), max_examples=1000, derandomize=False
)
settings.load_profile("tests")  # or --hypothesis-profile=thorough


def slow(*values):
    """A case that costs as much as another which shows the same of another mode or setting."""
    return pytest.param(*values, marks=pytest.mark.slow)


TINY = {
    "vocab_size": 90,
    "embedding_size": 16,
    "hidden_size": 32,
    "intermediate_size": 48,
    "num_attention_heads": 4,
    "num_hidden_layers": 4,
    "max_position_embeddings": 40,
    "initializer_range": 0.3,  # wide, so that layers and examples differ
}


def tiny_config(**overrides) -> ElbertConfig:
    return ElbertConfig(**{**TINY, **overrides})


def tiny_model(seed: int = 0, **overrides) -> ElbertForSequenceClassification:
    """A random ELBERT in eval mode; biases and corrections too, so that none is missed."""
    torch.manual_seed(seed)
    model = ElbertForSequenceClassification(tiny_config(**overrides)).eval()
    with torch.no_grad():
        for name, parameter in model.named_parameters():
            if name.endswith(("bias", "up")):
                parameter.normal_(0, 0.2)
    return model


def random_ids(batch: int, length: int, seed: int = 0) -> torch.Tensor:
    generator = torch.Generator().manual_seed(seed)
    return torch.randint(5, TINY["vocab_size"], (batch, length), generator=generator)


def made_texts(count: int = 12) -> list[list[int]]:
    """Token ids of texts whose lengths differ."""
    return [random_ids(1, 3 + (5 * i) % 11, i)[0].tolist() for i in range(count)]


def job_of(model, texts: Sequence[Sequence[int]], **settings) -> Job:
    """A job on RTE texts of token ids, whose labels are 0 and 1 in turn; `pad_token_id` is all that
    it asks its tokenizer for."""
    tokenizer = SimpleNamespace(pad_token_id=0, unk_token_id=1, all_special_ids=[0, 1])
    segments, labels = [[0] * len(ids) for ids in texts], [i % 2 for i in range(len(texts))]
    features = Features.from_lists(texts, segments, labels)
    return Job(model, tokenizer, get_task("rte"), features, **settings)


def run_of(job: Job) -> Run:
    """How the mode of a job's model runs over a data set."""
    return MODES[job.model.config.model_type].run


WORDS = "a man dog cat runs sleeps eats sings in the park house is not red big small old".split()


def sentence(number: int, length: int = 6) -> str:
    return " ".join(WORDS[(number * 7 + i * (number % 5 + 1)) % len(WORDS)] for i in range(length))


def made_reviews(count: int = 1500) -> list[tuple[str, int]]:
    """Texts with the label 0 or 1, enough and plain enough that a tiny model learns them."""
    return [(f"{('small', 'big')[i % 2]} {sentence(i, 3 + i % 2)}", i % 2) for i in range(count)]


def write_sst2(folder: Path) -> None:
    """SST-2's files, with made reviews."""
    for name in ("train", "dev"):
        tsv(folder / f"{name}.tsv", "sentence\tlabel", made_reviews())
    tsv(folder / "test.tsv", "index\tsentence", [(0, "a film")])


@pytest.fixture(scope="session")
def spiece(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A SentencePiece model with ALBERT's special pieces, trained on a few sentences."""
    folder = tmp_path_factory.mktemp("spiece")
    text = folder / "text.txt"
    text.write_text("\n".join(sentence(i) for i in range(200)), encoding="utf-8")
    sentencepiece.SentencePieceTrainer.train(
        f"--input={text} --model_prefix={folder}/spiece --vocab_size=60 --pad_id=0 "
        "--pad_piece=<pad> --unk_id=1 --bos_id=-1 --eos_id=-1 --hard_vocab_limit=false "
        "--control_symbols=[CLS],[SEP],[MASK] --minloglevel=2"
    )
    return folder / "spiece.model"


@pytest.fixture(scope="session")
def albert_dir(tmp_path_factory: pytest.TempPathFactory, spiece: Path) -> Path:
    """A bare HF ALBERT, saved by HF, beside its spiece.model."""
    folder = tmp_path_factory.mktemp("pretrained") / "tiny_albert"
    torch.manual_seed(1)
    transformers.AlbertModel(transformers.AlbertConfig(**TINY)).save_pretrained(folder)
    (folder / "spiece.model").write_bytes(spiece.read_bytes())
    return folder


def tsv(path: Path, header: str, rows: Sequence[Sequence[object]]) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    lines = ["\t".join(map(str, row)) for row in rows]
    path.write_text("\n".join([header, *lines]) + "\n", encoding="utf-8")
    return path


RTE_LABELS = ("entailment", "not_entailment")
PAIRS = "index\tsentence1\tsentence2"


def write_sts_b(folder: Path) -> Path:
    """STS-B files of 11 pairs each, whose scores rise by 0.45."""
    rows = [(i, sentence(i), sentence(i + 2), round(i * 0.45, 2)) for i in range(11)]
    for name in ("train", "dev"):
        tsv(folder / f"{name}.tsv", f"{PAIRS}\tscore", rows)
    tsv(folder / "test.tsv", PAIRS, [row[:3] for row in rows])
    return folder


def write_rte(folder: Path) -> Path:
    """RTE files: 24 training, 10 dev, 5 test examples."""
    for name, count in (("train", 24), ("dev", 10), ("test", 5)):
        rows = [(i, sentence(i), sentence(i + 1, i % 7 + 1)) for i in range(count)]
        if name == "test":
            tsv(folder / "test.tsv", PAIRS, rows)
        else:
            labelled = [(*row, RTE_LABELS[i % 2]) for i, row in enumerate(rows)]
            tsv(folder / f"{name}.tsv", f"{PAIRS}\tlabel", labelled)
    return folder


@pytest.fixture(scope="session")
def rte(tmp_path_factory) -> Path:
    return write_rte(tmp_path_factory.mktemp("glue") / "RTE")


@pytest.fixture
def script(capsys: pytest.CaptureFixture) -> Callable:
    """`script(main, "--flag", value, ...)` runs a script in this process, as from a shell."""

    def run(main: Callable[[], None], *arguments: object) -> Outcome:
        capsys.readouterr()
        return Outcome(exit_status(main, *arguments), *capsys.readouterr())

    return run


@pytest.fixture
def glue(script, albert_dir, rte, request) -> Callable[..., Outcome]:
    """`glue(out, "--do_train", ...)` runs run_glue.py on the tiny ALBERT and the RTE files.

    `weights`, `data` and `task` name others. Figures are put together, but rendered, which takes
    most of a tiny evaluation's time, only for tests with the mark `pictures`.
    """
    pictures = request.node.get_closest_marker("pictures")

    def run(out: Path, *arguments, weights: Path = albert_dir, data: Path = rte, task: str = "RTE"):
        with pytest.MonkeyPatch.context() as patch:
            if not pictures:
                patch.setattr(Figure, "savefig", lambda _, file, **options: file.write(b"none"))
            return script(run_glue.main, *flags(weights, data, out, task, *arguments))

    return run


@pytest.fixture(scope="session")
def trained_once(tmp_path_factory, albert_dir, rte) -> Path:
    return train(albert_dir, rte, tmp_path_factory.mktemp("trained") / "RTE")


@pytest.fixture
def trained(trained_once, tmp_path) -> Path:
    """An RTE model, trained for one epoch: a copy, which a test may change."""
    return Path(shutil.copytree(trained_once, tmp_path / "out/RTE"))


@pytest.fixture(scope="session")
def corpus(tmp_path_factory) -> Path:
    """30 documents of 1 to 4 sentences, a config.json and a longer text for evaluation."""
    folder = tmp_path_factory.mktemp("corpus")
    for name, count in (("train", 30), ("eval", 12)):
        documents = [[sentence(5 * i + j, 4 + j) for j in range(i % 4 + 1)] for i in range(count)]
        text = "\n\n".join("\n".join(lines) for lines in documents)
        (folder / f"{name}.txt").write_text(text, encoding="utf-8")
    # No dropout: chance would differ between one process and two.
    config = {**TINY, "num_hidden_layers": 3, "tau": 0.001, "classifier_dropout_prob": 0.0}
    (folder / "config.json").write_text(json.dumps(config))
    return folder


@pytest.fixture
def pretrain(script, corpus, spiece) -> Callable[..., Outcome]:
    """`pretrain(out, "--do_eval", ...)` runs run_pretraining.py on the corpus."""

    def run(out: Path, *arguments, **options) -> Outcome:
        all_flags = pretraining_flags(corpus, spiece, out, *arguments, **options)
        return script(run_pretraining.main, *all_flags)

    return run


def edit_json(path: Path, **values) -> None:
    path.write_text(json.dumps({**json.loads(path.read_text()), **values}))


def contents(folder: Path) -> dict[str, bytes]:
    """Every file under `folder`, to see that nothing was overwritten."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def write(path: Path, content: str | bytes) -> Path:
    path.write_bytes(content.encode("utf-8") if isinstance(content, str) else content)
    return path


@pytest.fixture
def tokenizer(albert_dir: Path):
    return load_tokenizer(albert_dir)


@pytest.fixture(scope="session")
def node_modules(tmp_path_factory) -> Path:
    """The JavaScript packages that docs/demo names, installed; a folder called node_modules."""
    if not (shutil.which("node") and shutil.which("npm")):
        pytest.skip("node or npm is missing: apt-get install nodejs npm")
    folder = tmp_path_factory.mktemp("npm")
    shutil.copy(Path(run_glue.__file__).parent / "docs" / "demo" / "package.json", folder)
    install = ["npm", "install", "--no-audit", "--no-fund", "--ignore-scripts"]
    done = subprocess.run(install, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode:
        pytest.skip(f"npm cannot install: {done.stderr[-300:]}")
    return folder / "node_modules"
