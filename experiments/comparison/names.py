"""What the pages call the networks and rules whose names in files are short."""

from evaluation.sweep import RANDOM_MIXTURE

# Networks with exits.
PONDER_GRID = {  # PonderNet over its two numbers
    "pondernet-beta0.01-prior0.1": "PonderNet, β = 0.01, λ_p = 0.1",
    "pondernet-beta0.01-prior0.2": "PonderNet, β = 0.01, λ_p = 0.2",
    "pondernet-beta0.03-prior0.1": "PonderNet, β = 0.03, λ_p = 0.1",
    "pondernet-beta0.03-prior0.2": "PonderNet, β = 0.03, λ_p = 0.2",
    "pondernet-beta0.1-prior0.1": "PonderNet, β = 0.1, λ_p = 0.1",
    "pondernet-beta0.1-prior0.2": "PonderNet, β = 0.1, λ_p = 0.2",
    "pondernet-beta0.1-prior0.55": "PonderNet, β = 0.1, λ_p = 0.55",
}
NETWORKS = {
    "shared-exits": "ELBERT",
    "still-exits-best": "ELBERT without dropout, best checkpoint",
    **PONDER_GRID,
    "pondernet-beta0.5": "PonderNet, PALBERT's β = 0.5, λ_p = 0.3",
    "palbert-beta0.5": "PALBERT, β = 0.5, λ_p = 0.3",
    "palbert-beta0.5-fromprior": "PALBERT, β = 0.5, λ_p = 0.3, KL(prior ‖ p)",
    "pondernet": "PonderNet on [CLS]",
    "palbert": "PALBERT's heads on [CLS]",
}
RULES = {
    RANDOM_MIXTURE: "random exits",
    "entropy": "entropy",
    "windows": "confidence window (bias_1)",
    "learnt": "learnt exit",
    "patience": "patience",
    "halting": "halting CDF",
}
ACT = "ACT in Graves' form"


def method_name(rule: str, network: str) -> str:
    """Name a rule on a network with exits."""
    return f"{RULES[rule]}, {NETWORKS[network]}"


# Methods that others are compared with.
ELBERT_RANDOM_EXITS = method_name(RANDOM_MIXTURE, "shared-exits")
# As PonderNet's networks, which had no dropout, and whose best checkpoints were kept.
ELBERT_AS_PONDERNET = method_name("entropy", "still-exits-best")
