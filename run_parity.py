"""PonderNet's parity experiment: a GRU learns the answer, and when to halt.

In a vector of --n_elems elements, a random number of them are 1 or -1, the rest 0. Is the number of
ones odd? At every step the model answers and gives its probability of halting there.

    python ./run_parity.py --n_elems 8 --output_dir parity_out

With --extrapolate it trains on vectors with at most three quarters of their elements set, and is
tested on fuller ones. Progress goes to TensorBoard, final results to results.json.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from runs.files import check_place
from runs.flags import as_dict, parse
from runs.folder import RunFolder
from runs.processes import run_script
from runs.provenance import provenance
from training.parity_settings import ParitySettings


def main() -> None:
    (settings,) = parse([ParitySettings], __doc__)
    path = Path(settings.output_dir, "results.json")
    check_place(path)
    # torch, and what stands on it: not before the flags are known to be right.
    import torch
    from torch.utils.tensorboard import SummaryWriter

    from modeling import ParityPonderGRU
    from training.parity import evaluate_parity, mean_score, train_parity

    torch.manual_seed(settings.seed)
    # One step of so small a GRU is too short to be shared out.
    torch.set_num_threads(1)
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    directory = path.parent
    results = {"provenance": provenance(as_dict(settings)).as_json()}
    known, harder = settings.non_zeros()
    model = ParityPonderGRU(settings.n_elems, settings.n_hidden, settings.max_steps).to(device)
    history = []
    with SummaryWriter(str(directory / "runs")) as writer:
        for epoch in train_parity(settings, model, device):
            history.append(epoch)
            for name, value in epoch.items():
                writer.add_scalar(name, value, epoch["epoch"])
    for name, non_zeros in (("in distribution", known), ("extrapolation", harder)):
        if non_zeros:
            scores = evaluate_parity(model, settings.n_elems, non_zeros, 4096, device)
            mean = mean_score(scores)
            results[name.replace(" ", "_")] = {**mean, "by_non_zeros": scores}
            shown = f"accuracy = {mean['accuracy']:.4f}, steps = {mean['steps']:.2f}"
            print(f"{name} ({non_zeros[0]} to {non_zeros[-1]} non-zero elements): {shown}")
    RunFolder(directory).write_json(path.name, {**results, "history": history})
    print(path)


if __name__ == "__main__":
    run_script(main)
