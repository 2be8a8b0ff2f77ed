"""What the pages call the networks and rules whose names in files are short."""

from answers.sweep import RANDOM_MIXTURE

# Networks with exits.
PONDER_GRID = {  # PonderNet over its two numbers
    "pondernet-beta0.01-prior0.1": "PonderNet, β = 0.01, λ_p = 0.1",
    "pondernet-beta0.01-prior0.2": "PonderNet, β = 0.01, λ_p = 0.2",
    "pondernet-beta0.03-prior0.1": "PonderNet, β = 0.03, λ_p = 0.1",
    "pondernet-beta0.03-prior0.2": "PonderNet, β = 0.03, λ_p = 0.2",
    "pondernet-beta0.1-prior0.1": "PonderNet, β = 0.1, λ_p = 0.1",
    "pondernet-beta0.1-prior0.2": "PonderNet, β = 0.1, λ_p = 0.2",
    "pondernet-beta0.03-prior0.55": "PonderNet, β = 0.03, λ_p = 0.55",
    "pondernet-beta0.1-prior0.55": "PonderNet, β = 0.1, λ_p = 0.55",
}
NETWORKS = {
    "shared-exits": "ELBERT",
    "shared-exits-equal": "ELBERT, equal weights",
    "shared-exits-taught": "ELBERT, taught",
    "twelve-exits-equal": "ELBERT of 12 passes, equal weights",
    "twelve-exits-taught": "ELBERT of 12 passes, taught",
    "still-exits": "ELBERT without dropout",
    "still-exits-best": "ELBERT without dropout, best checkpoint",
    "untied-exits": "MiniLM with exits",
    "untied-exits-equal": "MiniLM with exits, equal weights",
    "untied-exits-taught": "MiniLM with exits, taught",
    "rank8-exits": "corrections of rank 8",
    "rank32-exits": "corrections of rank 32",
    **PONDER_GRID,
    "pondernet-beta0.03": "PonderNet, β = 0.03, λ_p = 0.3",
    "pondernet-beta0.5": "PonderNet, PALBERT's β = 0.5, λ_p = 0.3",
    "palbert-beta0.5": "PALBERT, β = 0.5, λ_p = 0.3",
    "palbert-beta0.5-fromprior": "PALBERT, β = 0.5, λ_p = 0.3, KL(prior ‖ p)",
    "pondernet": "PonderNet on [CLS]",
    "palbert": "PALBERT's heads on [CLS]",
}
RULES = {
    RANDOM_MIXTURE: "random exits",
    "entropy": "entropy",
    "windows": "windows (bias_1)",
    "learnt": "learnt exit",
    "patience": "patience",
    "halting": "halting CDF",
}
# Networks that were each trained to one depth, with an answer after the last layer alone.
TRUNCATED = {
    "untied-{depth}": "ordinary MiniLM",
    "untied-{depth}-taught": "ordinary MiniLM, taught",
    "shared-{depth}": "shared passes, trained to k",
    "rank8-{depth}": "corrections of rank 8, trained to k",
    "rank32-{depth}": "corrections of rank 32, trained to k",
}
ACT = "ACT in Graves' form"


def method_name(rule: str, network: str) -> str:
    """Name a rule on a network with exits."""
    return f"{RULES[rule]}, {NETWORKS[network]}"


def mixture_name(truncated: str) -> str:
    """Name the random mixture of two truncated networks."""
    return f"{truncated}: two, at random"


def cascade_name(truncated: str) -> str:
    """Name the cascade of two truncated networks."""
    return f"{truncated}: two, as a cascade"


# Methods that several tables have.
ELBERT_COIN = method_name(RANDOM_MIXTURE, "shared-exits")
ELBERT = method_name("entropy", "shared-exits")
ELBERT_TAUGHT = method_name("entropy", "shared-exits-taught")
MINILM = method_name("entropy", "untied-exits")
MINILM_EQUAL = method_name("entropy", "untied-exits-equal")
MINILM_TAUGHT = method_name("entropy", "untied-exits-taught")
TRUNCATED_MINILM = TRUNCATED["untied-{depth}"]
TRUNCATED_MINILM_TAUGHT = TRUNCATED["untied-{depth}-taught"]
