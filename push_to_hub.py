"""Upload a trained model to the Hugging Face hub, with a model card made from its evaluation.

    python ./push_to_hub.py --model_dir out/albert_base/RTE --hub_model_id me/elbert-rte

The card is README.md in --model_dir; a card that you have edited stays as it is. Without
--hub_model_id, the command only writes the card. With it, the command sends weights, configuration,
exit_config.json, tokenizer, card and exits.png, without paths and flags of this machine. Sign in
first, by `hf auth login`.
"""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))  # python -P leaves it out

from evaluation.model_card import update_card
from runs.flags import parse
from runs.hub_upload import HubSettings, send
from runs.processes import run_script
from runs.used_files import UsedFiles


def main() -> None:
    (settings,) = parse([HubSettings], __doc__)
    folder = settings.model_dir
    used = UsedFiles(folder, folder / "eval_results.json")
    update_card(settings, used)
    if settings.hub_model_id:
        used.check()
        send(folder, settings.hub_model_id, settings.hub_private_repo)


if __name__ == "__main__":
    run_script(main)
