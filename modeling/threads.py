"""How threads wait for each other: for a moment awake, then asleep."""

import os

# GNU OpenMP, which torch's wheels for Linux bring along, looks this often before a thread sleeps.
# Its own 300,000 looks take milliseconds at every barrier: beside another busy process, threads
# then wait awake for one that has no processor. See docs/speed.md, "Neighbours".
LOOKS = 3000
OWN = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")  # where the user says so


def waiting() -> dict[str, str]:
    """The environment's variables that `wait_briefly` sets: none where the user has."""
    return {} if any(name in os.environ for name in OWN) else {"GOMP_SPINCOUNT": str(LOOKS)}


def wait_briefly() -> None:
    """For this process and those it starts; to be called before torch is imported.

    What the user has set in the environment stays. Other OpenMP libraries do not look at it.
    """
    os.environ.update(waiting())
