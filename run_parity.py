"""PonderNet's parity experiment: a GRU learns to answer, and when to stop thinking.

A vector of --n_elems elements has a random number of them set to 1 or -1, the others are 0; is the
number of ones odd? At every step the model answers and says how probable it is to halt there.

    python ./run_parity.py --n_elems 8 --output_dir parity_out

With --extrapolate it trains on vectors with at most three quarters of their elements set, and is
tried on fuller ones. Progress goes to TensorBoard, the end to results.json and training.png.
"""

from pathlib import Path

from training.parity_settings import ParitySettings
from training.provenance import provenance
from training.settings import as_dict, parse
from utils.files import run_script, write_json


def main() -> None:
    (settings,) = parse([ParitySettings], __doc__)
    # torch, and what stands on it: not before the flags are known to be right.
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from evaluation.figures import save_figure, training_figure
    from modeling import ParityPonderGRU
    from training.parity import evaluate_parity, mean_score, train_parity

    torch.manual_seed(settings.seed)
    # One step of so small a GRU is too short to be shared out.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = Path(settings.output_dir)
    results = {"settings": as_dict(settings) | {"torch": torch.__version__, "device": device.type}}
    results["provenance"] = provenance(as_dict(settings))
    write_json(directory / "results.json", results)  # fails now, not at the end
    known, harder = settings.non_zeros()
    model = ParityPonderGRU(settings.n_elems, settings.n_hidden, settings.max_steps).to(device)
    history = []
    with SummaryWriter(str(directory / "runs")) as writer:
        for epoch in train_parity(settings, model, device):
            history.append(epoch)
            for name, value in epoch._asdict().items():
                writer.add_scalar(name, value, epoch.epoch)
    for name, non_zeros in (("in distribution", known), ("extrapolation", harder)):
        if non_zeros:
            scores = evaluate_parity(model, settings.n_elems, non_zeros, 4096, device)
            mean, by_non_zeros = mean_score(scores), [score._asdict() for score in scores]
            results[name.replace(" ", "_")] = {**mean, "by_non_zeros": by_non_zeros}
            shown = f"accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}"
            fewest, most = scores[0].non_zeros, scores[-1].non_zeros
            print(f"{name} ({fewest} to {most} non-zero elements): {shown}")
    results["history"] = [epoch._asdict() for epoch in history]
    write_json(directory / "results.json", results)
    title = f"Parity of {settings.n_elems} elements, at most {settings.max_steps} steps"
    save_figure(training_figure(history, settings.max_steps, title), directory / "training.png")
    print(f"{directory / 'results.json'}, {directory / 'training.png'}")


if __name__ == "__main__":
    run_script(main)
