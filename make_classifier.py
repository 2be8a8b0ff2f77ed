"""Train a fast text classifier from a table and a pre-trained encoder, with one command.

    python make_classifier.py --train_file reviews.csv --model_name_or_path bert-base-uncased \\
        --output_dir out/reviews

The command trains an exit (a small classifier) after every layer with the recommended recipe,
chooses an exit threshold on one half of the dev rows, reports accuracy and cost on the other half,
writes an int8 ONNX file, and prints how to use it. The model is in OUTPUT_DIR/model. Without
--validation_file, a share of the training rows is the dev set, with the same shares of labels.

With --recipe add_exits, MODEL_NAME_OR_PATH is a fine-tuned classifier, whose head becomes the last
exit; with --train_exits_only as well, its answers at full depth stay as they are.

After an interruption, give the same command again to continue. Flags that are not listed below go
to the training (run_glue.py --help lists them). Needs requirements/onnx.txt.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from runs.files import check_place
from runs.output_dir import locked_for_training
from runs.processes import run_script
from training.classifier.project import check_inputs, check_packages, read_project
from training.classifier.steps import make_classifier, training_command


def main() -> None:
    project = read_project(__doc__)
    check_place(project.model_dir)
    check_packages()  # now, since the export comes last, after the training
    check_inputs(project)
    training = training_command(project)  # its flags, before anything is written
    with locked_for_training(project.output_dir):
        make_classifier(project, training)


if __name__ == "__main__":
    run_script(main)
