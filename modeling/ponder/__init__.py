"""PonderALBERT: every layer gives a halting probability, learned with the task."""
