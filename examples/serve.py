"""Answer texts over HTTP with a trained model; its slots are kept full across requests.

    python examples/serve.py --model_dir out/sst2 --port 8000
    curl localhost:8000/classify --json '{"texts": ["A moving, funny film."]}'

--onnx answers with an ONNX file in place of the model.

POST /classify: one or more texts or pairs of texts. The answer has for each of them the label (or
value), its score, the layer after which it exited, and the milliseconds from the request's arrival,
waiting included; with "top_k" also `classes`, the k likeliest ones, or all for null.
POST /predict: the same, as clients of Hugging Face's text-embeddings-inference and hub ask.
POST /v2/models/NAME/infer: the same, as clients of KServe and Triton ask.
GET /health: how many texts wait and run; 500 when nothing is answered any more.
GET /ready: whether there is room for requests; 503 while there is none, and after SIGTERM.
GET /metrics: requests, texts, seconds, exit layers and computation cost, for Prometheus.
GET /docs: all routes, to be tried in a browser.

A request of more than --max_body_size bytes or --queue texts is answered with 413, what is no list
of texts with 422, and any request with 503 while --queue texts wait. A text that the model cannot
answer is a 500 for its request alone. The texts of a client that hangs up are dropped. SIGTERM and
Ctrl-C end the server when it has answered what it took. After --shutdown_seconds, what is still
open is answered with 503.

Needs requirements/serve.txt, and for --onnx requirements/onnx.txt.
"""

import os
import sys
from functools import partial
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))

from modeling.runtime import keep_freed_memory, spin_environment

os.environ.update(spin_environment())  # before torch is imported

try:
    from serving.app import make_app, serve
    from serving.server import Limits, Server
except ImportError as missing:
    sys.exit(f"error: {missing}; pip install -r requirements/serve.txt")

from elbert import Classifier
from modeling.cpu_packing import DTYPES
from runs.flags import AT_LEAST_1, Allowed, FlagParser
from runs.processes import run_script

PORT = Allowed(low=0, high=65535)


def flag_parser() -> FlagParser:
    """Make the parser of the flags."""
    parser = FlagParser(__doc__)
    add = parser.add_argument
    add_count = partial(add, metavar="N", type=AT_LEAST_1.reader(int))
    add("--model_dir", type=Path, required=True, help="folder of a trained model")
    add("--onnx", help="ONNX file of the model, which answers in its place")
    add("--host", default="127.0.0.1", help="address to listen on; 0.0.0.0: all")
    add_count("--port", type=PORT.reader(int), default=8000, help="port; 0: any free one")
    add_count("--slots", default=32, help="number of texts that share a layer pass")
    add_count("--queue", default=1000, help="largest number of texts that wait")
    add_count("--max_body_size", default=1_000_000, help="largest size of a request, in bytes")
    add_count(
        "--shutdown_seconds", default=20, help="time for open requests after SIGTERM, in seconds"
    )
    add_count(
        "--keep_alive_seconds",
        default=75,
        help="time that a connection without requests stays open, in seconds; it should be longer "
        "than that of a proxy in front of the server",
    )
    add(
        "--model_name",
        help="name of the model for clients of KServe and Triton; default: the folder's",
    )
    add(
        "--allow_origin",
        nargs="+",
        default=[],
        metavar="ORIGIN",
        help="origins of web pages that may ask, for example https://example.org; *: all",
    )
    add(
        "--dtype",
        choices=(*DTYPES, "auto"),
        default="fp32",
        help="number type of the model; auto: bf16 where the processor has instructions for it",
    )
    add(
        "--torch_compile",
        action="store_true",
        help="on a GPU, compile the layer pass by torch.compile: seconds for every shape of a "
        "batch, and a faster answer",
    )
    add(
        "--long_texts",
        choices=("cut", "windows"),
        default="cut",
        help="treatment of texts that are longer than the model reads: cut them, or read all of "
        "them in overlapping windows",
    )
    add(
        "--stop_score",
        type=float,
        help="with --long_texts windows: score from which a window's answer stands for the text",
    )
    return parser


def main() -> None:
    args = flag_parser().parse_args()
    keep_freed_memory()
    classifier = Classifier(
        args.model_dir,
        dtype=args.dtype,
        device="cpu" if args.onnx else "auto",
        onnx=args.onnx,
        long_texts=args.long_texts,
        stop_score=args.stop_score,
        compile=args.torch_compile,
    )
    limits = Limits(args.slots, args.queue, args.max_body_size, args.shutdown_seconds)
    server = Server(classifier, limits)
    model_name = args.model_name or args.model_dir.resolve().name
    app = make_app(server, model_name, args.allow_origin)
    serve(app, server, args.host, args.port, args.keep_alive_seconds)


if __name__ == "__main__":
    run_script(main)
