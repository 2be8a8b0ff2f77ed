"""PonderNet's parity experiment: a GRU learns to answer, and when to stop thinking.

A vector of --n_elems elements has a random number of them set to 1 or -1, the others are 0; is the
number of ones odd? At every step the model answers and says how probable it is to halt there.

    python ./run_parity.py --n_elems 8 --output_dir parity_out

With --extrapolate it trains on vectors with at most three quarters of their elements set, and is
tried on fuller ones. Progress goes to TensorBoard, the end to results.json and training.png.
"""

from pathlib import Path

from glue.files import run_script, write_json
from training.parity_settings import GROUPS, ParitySettings
from training.settings import as_dict, parse


def read_settings() -> ParitySettings:
    return ParitySettings(*parse(GROUPS, __doc__))


def main() -> None:
    settings = read_settings()
    # torch, and what stands on it: not before the flags are known to be right.
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from evaluation.figures import save_figure
    from evaluation.parity_report import report, training_figure
    from modeling import ParityPonderGRU
    from training.parity import evaluate, train

    vectors, prior, how = settings
    torch.manual_seed(how.seed)
    # One step of so small a GRU is too short to be shared out.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = Path(how.output_dir)
    results = {"settings": as_dict(*settings) | {"torch": torch.__version__, "device": device.type}}
    write_json(directory / "results.json", results)  # fails now, not at the end
    known, harder = vectors.non_zeros()
    model = ParityPonderGRU(vectors.n_elems, prior.n_hidden, prior.max_steps).to(device)
    history = []
    with SummaryWriter(str(directory / "runs")) as writer:
        for epoch in train(settings, model, device):
            history.append(epoch)
            for name, value in epoch._asdict().items():
                writer.add_scalar(name, value, epoch.epoch)
    scores = evaluate(model, vectors.n_elems, known, 4096, device)
    results["in_distribution"] = report("in distribution", scores)
    if harder:
        scores = evaluate(model, vectors.n_elems, harder, 4096, device)
        results["extrapolation"] = report("extrapolation", scores)
    results["history"] = [epoch._asdict() for epoch in history]
    write_json(directory / "results.json", results)
    title = f"Parity of {vectors.n_elems} elements, at most {prior.max_steps} steps"
    save_figure(training_figure(history, title), directory / "training.png")
    print(f"{directory / 'results.json'}, {directory / 'training.png'}")


if __name__ == "__main__":
    run_script(main)
